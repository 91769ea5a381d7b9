"""Masks in files: read, checked, and turned into `True` = this query may attend to this key."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors import InputError
from attncli.tokens import visible

if TYPE_CHECKING:
    from jaxtyping import Bool

ENDINGS = (".npy", ".json", ".csv")

# An additive mask forbids with −inf, finfo.min, or the −1e4 (−9984 in bfloat16) and −1e9 of older code; a bias is far
# smaller.
_FORBIDDEN_BELOW = -9_000.0


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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's, about what a damaged header looks like
            values = _read_array(path)
    except FileNotFoundError:
        raise InputError(f"mask file {name} does not exist") from None
    except Exception as error:  # a damaged header is read as Python literals, which raises nearly anything
        raise InputError(f"mask file {name} cannot be read: {visible(str(error))[:200]}") from None
    if values.ndim not in (2, 3) or not values.size or values.dtype.kind not in "biuf":
        raise InputError(
            f"mask file {name} holds {values.dtype} of shape {list(values.shape)}; expected booleans, 0/1 or "
            "additive floats of shape [queries, keys] or [heads, queries, keys]"
        )
    return as_allowed(values, f"file {name}")


def _read_array(path: Path) -> np.ndarray[Any, Any]:
    match path.suffix.lower():
        case ".npy":
            # Mapped, so that a header that claims more than the file holds is refused before memory is taken.
            return np.array(np.load(path, mmap_mode="r", allow_pickle=False))
        case ".json":
            return np.array(_json_numbers(json.loads(path.read_text(encoding="utf-8-sig"))))
        case ".csv":
            lines = path.read_text(encoding="utf-8-sig").splitlines()
            return np.array([[_csv_number(cell) for cell in line.split(",")] for line in lines if line.strip()])
    raise ValueError(f"its ending is none of {', '.join(ENDINGS)}")


def _json_numbers(value: Any) -> Any:
    """Return nested lists with the infinities as numbers; JSON has none, and spells them as words."""
    if isinstance(value, list):
        return [_json_numbers(item) for item in value]
    return float(value) if value in ("inf", "-inf", "nan") else value


def _csv_number(cell: str) -> float:
    word = cell.strip().lower()
    return float({"true": "1", "false": "0"}.get(word, word))


def as_allowed(values: np.ndarray[Any, Any], name: str) -> Bool[np.ndarray, "*H Q K"]:
    """Return a mask as `True` = attend, from booleans, 0/1 or additive floats.

    Raises:
        InputError: its values are none of these.
    """
    if values.dtype == bool:
        return values
    distinct = np.unique(values)
    if values.dtype.kind == "f" and not distinct.any():
        raise InputError(
            f"the mask {name} is all 0.0, which forbids nothing if it is additive and everything if 1 means attend; "
            "write it with booleans"
        )
    if np.isin(distinct, (0, 1)).all():
        return values == 1
    if np.isin(distinct[~(distinct <= _FORBIDDEN_BELOW)], 0).all():
        return values == 0
    shown = ", ".join(f"{value:g}" for value in distinct[:5])
    raise InputError(
        f"the mask {name} holds the values {shown}…; expected booleans, 0/1 (1 = attend) or an additive mask of "
        "0 and −inf (or another very negative number)"
    )
