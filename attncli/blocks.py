"""Row blocks: what is quadratic in the sequence is made, used and dropped a few rows at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Int

CELLS = 2**20  # in one block, 4 MiB as float32; far smaller blocks spend their time in waking BLAS's threads


def row_blocks(rows: Int[np.ndarray, " Q"], columns: int) -> list[Int[np.ndarray, " Q"]]:
    """Return `rows` in consecutive blocks of nearly one length, which with that many columns have at most `CELLS`."""
    longest = max(CELLS // max(columns, 1), 1)
    return np.array_split(rows, max(-(-len(rows) // longest), 1))
