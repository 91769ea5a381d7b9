"""ALiBi (Press et al. 2022): a bias that grows with the distance, with a slope for each head."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from attncli.masks.algebra import And, Atom, Expression

if TYPE_CHECKING:
    from jaxtyping import Float, Int


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
    if isinstance(expression, And):
        return next((heads for side in expression.sides if (heads := bias_heads(side))), None)
    return expression.arguments[0] if isinstance(expression, Atom) and expression.name == "alibi" else None


def alibi(heads: int, queries: int, keys: int, past: int) -> Float[np.ndarray, "H Q K"]:
    """Return −slope · |i − j| for query position i and key position j; the paper has it for j ≤ i alone."""
    return np.stack([rows_of(np.arange(queries)) for rows_of in biases(heads, keys, past)])


def biases(heads: int, keys: int, past: int) -> Iterator[Callable[[Int[np.ndarray, " R"]], Float[np.ndarray, "R K"]]]:
    """Yield for each head what gives some query rows of its bias; all heads at once would fill the memory."""

    def rows(slope: float, queries: Int[np.ndarray, " R"]) -> Float[np.ndarray, "R K"]:
        return -slope * np.abs(queries[:, None] + past - np.arange(keys)[None, :])

    return (partial(rows, slope) for slope in slopes(heads))
