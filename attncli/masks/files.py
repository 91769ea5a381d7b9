"""Masks in files: read, checked, and turned into `True` = this query may attend to this key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors import InputError
from attncli.tokens import visible

if TYPE_CHECKING:
    from jaxtyping import Bool

ENDINGS = (".npy", ".json", ".csv")

# An additive mask forbids with −inf, finfo.min, or the −1e4 and −1e9 of older code; a bias is far smaller.
_FORBIDDEN_BELOW = -9_999.0


def read_mask(path: Path) -> Bool[np.ndarray, "*H Q K"]:
    """Read a mask file.

    Args:
        path: `.npy`, `.json` (nested lists) or `.csv`; two axes `[Q, K]`, or three `[H, Q, K]`. Booleans and
            0/1 say True = attend; floats that hold 0 and very negative values are additive.

    Raises:
        InputError: there is no such file, or it holds no mask.
    """
    name = visible(str(path))
    try:
        values = _read_array(path)
    except FileNotFoundError:
        raise InputError(f"mask file {name} does not exist") from None
    except (OSError, ValueError, EOFError, RecursionError) as error:
        raise InputError(f"mask file {name} cannot be read: {visible(str(error))}") from None
    if values.ndim not in (2, 3) or not values.size or values.dtype.kind not in "biuf":
        raise InputError(
            f"mask file {name} holds {values.dtype} of shape {list(values.shape)}; expected booleans, 0/1 or "
            "additive floats of shape [queries, keys] or [heads, queries, keys]"
        )
    return as_allowed(values, f"file {name}")


def _read_array(path: Path) -> np.ndarray[Any, Any]:
    match path.suffix.lower():
        case ".npy":
            return np.load(path, allow_pickle=False)
        case ".json":
            return np.array(json.loads(path.read_text(encoding="utf-8")))
        case ".csv":
            lines = path.read_text(encoding="utf-8").split()
            return np.array([[float(cell) for cell in line.split(",")] for line in lines])
    raise ValueError(f"its ending is none of {', '.join(ENDINGS)}")


def as_allowed(values: np.ndarray[Any, Any], name: str) -> Bool[np.ndarray, "*H Q K"]:
    """Return a mask as `True` = attend, from booleans, 0/1 or additive floats.

    Raises:
        InputError: its values are none of these.
    """
    if values.dtype == bool:
        return values
    distinct = np.unique(values)
    if np.isin(distinct, (0, 1)).all():
        return values == 1
    if np.isin(distinct[distinct > _FORBIDDEN_BELOW], 0).all() and distinct[-1] == 0:
        return values == 0
    shown = ", ".join(f"{value:g}" for value in distinct[:5])
    raise InputError(
        f"the mask {name} holds the values {shown}…; expected booleans, 0/1 (1 = attend) or an additive mask of "
        "0 and −inf (or another very negative number)"
    )
