"""What models for long texts return as their attention, put into one map a cell at a time."""

from collections.abc import Iterator
from typing import Any

import numpy as np

Cells = Iterator[tuple[tuple[int, ...], int, int]]  # where a weight stands in what is returned, its query and its key


def whole_map(name: str, returned: Any, queries: int, keys: int) -> Any:
    """Return the weights `[H, Q, K]` of one sentence; what fills the last block must have none."""
    if name not in LAYOUTS or returned.shape[-2:] == (queries, keys):
        return returned
    heads = returned.shape[0]
    found = np.zeros((heads, queries, keys), returned.dtype)
    for place, query, key in LAYOUTS[name](returned.shape):
        weights = returned[place]
        if query < queries and 0 <= key < keys:
            found[:, query, key] += weights
        elif query < queries:
            assert not weights.any(), (query, key)
    return found


def _band(shape: tuple[int, ...]) -> Cells:
    """`[H, T, 2w + 1]`: Beltagy et al. 2020, without global tokens."""
    _, tokens, width = shape
    for query in range(tokens):
        for column in range(width):
            yield (..., query, column), query, query + column - width // 2


LAYOUTS = {"led": _band, "longformer": _band}
