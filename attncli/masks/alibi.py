"""ALiBi (Press et al. 2022): a bias of the scores that grows with the distance, with a slope for each head."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from attncli.attention import row_blocks
from attncli.masks.expressions import Expression, atoms_named, conjuncts

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

_ROUNDING = 0.02  # of the largest bias of a row: the rounding of slopes, distances and products in bfloat16


def slopes(heads: int) -> list[float]:
    """Return the slope of every head.

    For n heads, a power of two, they are 2^(−8/n), 2^(−16/n), …, 2^−8. For others the paper's own code takes those of
    the power of two below, then every second one of the power above.
    """
    below = 2 ** int(math.log2(heads))
    first = [2 ** (-8 * (head + 1) / below) for head in range(below)]
    between = [2 ** (-4 * (head + 1) / below) for head in range(0, 2 * (heads - below), 2)]
    return first + between


def bias_heads(expression: Expression) -> int | None:
    """Return how many heads the bias of an expression has; None is no bias."""
    return next((bias.arguments[0] for bias in atoms_named("alibi", conjuncts(expression))), None)


def slopes_in(
    bias: Float[np.ndarray, "#B #H #Q #K"], allowed: Bool[np.ndarray, "#B #H #Q #K"], shape: tuple[int, int, int, int]
) -> tuple[float, ...] | None:
    """Return the slope of every head of a bias that is −slope · |i − j|, up to a number of each row; None is another.

    The softmax takes no notice of such a number, and −slope · (i − j) is written as slope · j too. Where no query sees
    two keys at different distances, every slope fits, and none is returned.

    Args:
        bias: added to the scores.
        allowed: the keys that are seen, as others do not matter.
        shape: `(B, H, Q, K)` of the attention, whose last query stands at the last key.
    """
    _, heads, queries, keys = shape
    if 0 in shape:
        return ()
    i, j = np.arange(queries)[:, None] + max(keys - queries, 0), np.arange(keys)
    allowed = np.broadcast_to(allowed, (*allowed.shape[:2], queries, keys))
    if bias.shape[2] == 1 and np.any(allowed & (j > i)):
        return None  # a number for each key is no distance to both sides
    if len(bias) == 1:
        allowed = np.logical_or.reduce(allowed, axis=0, keepdims=True)
    bias = np.broadcast_to(bias, (*bias.shape[:3], keys))
    found: list[float] = []
    tells = False
    for head, by_definition in enumerate(slopes(heads)):
        planes = [
            (bias[row, min(head, bias.shape[1] - 1)], each[min(head, len(each) - 1)])
            for row, each in enumerate(np.broadcast_to(allowed, (len(bias), *allowed.shape[1:])))
        ]
        span, steepest = max((_widest(*plane, i) for plane in planes), default=(0.0, 0.0))
        tells |= span > 0
        slope = next((one for one in (by_definition, steepest) if all(_has(one, *plane, i) for plane in planes)), None)
        if slope is None:
            return None
        found.append(slope)
    return tuple(found) if tells else ()


def _has(
    slope: float, bias: Float[np.ndarray, "#Q K"], allowed: Bool[np.ndarray, "Q K"], i: Int[np.ndarray, "Q 1"]
) -> bool:
    """Return whether the bias of a head is −slope · distance where it is allowed, up to a number of each row."""
    queries, keys = allowed.shape
    if len(bias) == 1 < queries:  # one row with all keys decides most masks
        union = np.logical_or.reduce(allowed, axis=0, keepdims=True)
        if _has(slope, bias, union, i[-1:]):
            return True
    for rows in row_blocks(np.arange(queries), keys):
        own, may = bias if len(bias) == 1 else bias[rows], allowed[rows]
        left = own + slope * np.abs(i[rows] - np.arange(keys))
        most, least = np.where(may, left, -np.inf).max(axis=1), np.where(may, left, np.inf).min(axis=1)
        if not (most - least <= _ROUNDING * np.where(may, np.abs(own), 0).max(axis=1) + 1e-6).all():
            return False
    return True


def _widest(
    bias: Float[np.ndarray, "#Q K"], allowed: Bool[np.ndarray, "Q K"], i: Int[np.ndarray, "Q 1"]
) -> tuple[float, float]:
    """Return the largest difference of distances in the row with most keys, and the slope between these two."""
    row = int(np.count_nonzero(allowed, axis=1).argmax())
    seen = np.flatnonzero(allowed[row])
    if not seen.size:
        return 0.0, 0.0
    own, distance = bias[min(row, len(bias) - 1), seen], np.abs(i[row] - seen)
    near, far = distance.argmin(), distance.argmax()
    span = float(distance[far] - distance[near])
    return span, (float(own[near]) - float(own[far])) / span if span else 0.0
