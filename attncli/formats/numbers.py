"""Numbers as every machine format writes them: all their digits and no more."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from attncli.trace.layer import Proof


def as_numbers(values: Float[np.ndarray, " N"], precision: int | None) -> list[str]:
    """Return numbers as texts.

    Without a precision a float32 gets the fewest digits that read back as the same float32. NaN and the
    infinities are `nan`, `inf` and `-inf`.
    """
    if precision is not None:
        return [f"{value:.{precision}f}" for value in values.tolist()]
    texts = _dumped(values)[1:-1].split(",") if len(values) else []
    for place in np.flatnonzero(~np.isfinite(values)).tolist():
        texts[place] = str(values[place])
    return texts


def number(value: float | np.floating | np.bool | None, precision: int | None) -> float | str | bool | None:
    """Return a value as JSON takes it: NaN and the infinities as strings, a float32 by its shortest digits."""
    if value is None:
        return None
    if isinstance(value, bool | np.bool):
        return bool(value)
    if not math.isfinite(value):
        return str(float(value))
    return float(str(value)) if precision is None else round(float(value), precision)


def proven(proof: Proof | None) -> dict[str, Any] | None:
    """Return a proof as JSON takes it."""
    if proof is None:
        return None
    numbers = {name: number(getattr(proof, name), None) for name in ("max_abs_error", "magnitude")}
    return {**proof._asdict(), **numbers}


def rows_as_numbers(values: Float[np.ndarray, "R C"] | Bool[np.ndarray, "R C"], precision: int | None) -> str:
    """Return a matrix as JSON; values that are no JSON numbers are strings."""
    if values.dtype == bool or (precision is None and np.isfinite(values).all()):
        return _dumped(values)
    rows = (",".join(_json(text, precision) for text in as_numbers(row, precision)) for row in values)
    return "[" + ",".join(f"[{row}]" for row in rows) + "]"


def matrix(
    blocks: Iterable[Float[np.ndarray, "R C"] | Bool[np.ndarray, "R C"]], precision: int | None
) -> Iterator[str]:
    """Yield a matrix as JSON, given in blocks of rows; it has one row at least."""
    opening = "["
    for block in blocks:
        yield opening + rows_as_numbers(block, precision)[1:-1]
        opening = ","
    yield "]"


def _json(text: str, precision: int | None) -> str:
    if not text[-1].isdigit():
        return f'"{text}"'
    return text if precision is None else str(float(text))  # a float stays one, and needs no zeros at its end


def _dumped(values: np.ndarray[tuple[int, ...], np.dtype[np.floating | np.bool_]]) -> str:
    return orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY).decode()
