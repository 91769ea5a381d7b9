"""Numbers as every machine format writes them: all their digits and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float


def written(values: Float[np.ndarray, ...], precision: int | None) -> np.ndarray[Any, Any]:
    """Return the numbers as strings, in the shape they came in.

    Without a precision a float32 gets the fewest digits that read back as the same float32. NaN and the
    infinities are `nan`, `inf` and `-inf`.
    """
    if precision is None:
        return values.astype("U32")
    return np.array([f"{value:.{precision}f}" for value in values.ravel().tolist()], "U").reshape(values.shape)
