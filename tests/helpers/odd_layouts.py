"""What models for long texts return as their attention, put into one map a cell at a time."""

from collections.abc import Iterator
from typing import Any

import numpy as np

Cells = Iterator[tuple[tuple[int, ...], int, int]]  # where a weight stands in what is returned, its query and its key


def whole_map(name: str, returned: Any, queries: int, keys: int, is_padding: Any = ()) -> Any:
    """Return the weights `[H, Q, K]` of one sentence; what fills the last block must have none, but for padding."""
    if name == "prophetnet":  # the main stream's queries come first
        return returned[:, :queries]
    if name not in LAYOUTS or returned.shape[-2:] == (queries, keys):
        return returned
    if name == "reformer" and returned.ndim == 3:  # one chunk
        assert not returned[:, :queries, keys:].any()
        return returned[:, :queries, :keys]
    heads = returned.shape[1 if name == "longt5" else 0]
    found = np.zeros((heads, queries, keys), returned.dtype)
    for place, query, key in LAYOUTS[name](returned.shape):
        weights = returned[place]
        if query < queries and 0 <= key < keys:
            found[:, query, key] += weights
        elif query < queries and not (len(is_padding) and is_padding[query]):
            assert not weights.any(), (query, key)
    return found


def global_and_local(returned: dict[str, Any], queries: int) -> Any:
    """Return the weights of Pegasus-X `[H, Q, Q]`, where the positions that see everything stand behind the tokens.

    `local` is `[H, N, L, G + L]`, `global` `[H, G, G + N·L]`; in every other layer a block begins before the tokens.
    """
    heads, blocks, length, width = returned["local"].shape
    others = width - length
    tokens = queries - others
    first = length // 2 if blocks > -(-tokens // length) else 0
    found = np.zeros((heads, queries, queries), np.float32)
    for query in range(queries):
        for key in range(queries):
            if query >= tokens:
                column = key - tokens if key >= tokens else others + first + key
                found[:, query, key] = returned["global"][:, query - tokens, column]
            elif key >= tokens:
                found[:, query, key] = returned["local"][:, *divmod(first + query, length), key - tokens]
            elif (first + query) // length == (first + key) // length:
                column = others + (first + key) % length
                found[:, query, key] = returned["local"][:, *divmod(first + query, length), column]
    return found


def with_sums(returned: Any, queries: int) -> Any:
    """Return the weights of LongT5 `[H, Q, Q + G]`, where the sums of blocks stand behind the tokens.

    `[N, H, L, 3L + G]`: the block before, the own one, the next, and the sums (Guo et al. 2021).
    """
    blocks, heads, length, width = returned.shape
    others = width - 3 * length
    found = np.zeros((heads, queries, queries + others), np.float32)
    for query in range(queries):
        block, row = divmod(query, length)
        for key in range(queries):
            if abs(key // length - block) <= 1:
                found[:, query, key] = returned[block, :, row, key - (block - 1) * length]
        found[:, query, queries:] = returned[block, :, row, 3 * length :]
    assert blocks * length >= queries
    return found


def _band(shape: tuple[int, ...]) -> Cells:
    """`[H, T, 2w + 1]`: Beltagy et al. 2020, without global tokens."""
    _, tokens, width = shape
    for query in range(tokens):
        for column in range(width):
            yield (..., query, column), query, query + column - width // 2


def _three_blocks(shape: tuple[int, ...]) -> Cells:
    """`[N, H, L, 3L]`: the block before, the own one and the next (Guo et al. 2021)."""
    blocks, _, length, width = shape
    for block in range(blocks):
        for row in range(length):
            for column in range(width):
                yield (block, slice(None), row, column), block * length + row, (block - 1) * length + column


def _chunks(shape: tuple[int, ...]) -> Cells:
    """`[H, N, L, 2L]`: the chunk before, which of the first one is the last, and the own one (Kitaev et al. 2020)."""
    _, chunks, length, width = shape
    assert width == 2 * length
    for chunk in range(chunks):
        for row in range(length):
            for column in range(length):
                yield (slice(None), chunk, row, column), chunk * length + row, (chunk - 1) % chunks * length + column
                yield (slice(None), chunk, row, length + column), chunk * length + row, chunk * length + column


LAYOUTS = {"led": _band, "longformer": _band, "longt5": _three_blocks, "reformer": _chunks}
