"""The heaviest keys of each query: a summary of a row of any length in a few cells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from attncli.trace.layer import HeadTrace

_FAR = 1e300
Places = np.ndarray[tuple[int], np.dtype[np.intp]]


def drawn_cells(head: HeadTrace) -> Bool[np.ndarray, "Q K"]:
    """Return which weights are shown as numbers: all but the masked ones that are exactly zero.

    A query that may attend to nothing still has weights, NaN or spread over masked keys, and they are not hidden.
    """
    return head.mask | (head.weights != 0)


def top_keys(
    head: HeadTrace, columns: slice | list[int], most: int
) -> Iterator[tuple[Places, Float[np.ndarray, " N"]]]:
    """Yield, for each query of a head, the places of its `most` heaviest keys among the columns, and their weights."""
    for block in head.blocks():
        weights = block.weights[:, columns]
        counted = drawn_cells(block)[:, columns]
        for row, places in zip(weights, heaviest(weights, counted, most), strict=True):
            yield places, row[places]


def heaviest(weights: Float[np.ndarray, "Q K"], counted: Bool[np.ndarray, "Q K"], most: int) -> list[Places]:
    """Return the places of the `most` largest weights of each row, the largest first.

    A row has fewer where fewer of its cells are counted. NaN comes before every number, and of equal weights the
    earlier key comes first.
    """
    # Negated, so that a stable sort keeps the order of equal keys. An infinite weight is far below NaN and far above
    # the cells that are not counted.
    costs = np.clip(-weights.astype(np.float64), -_FAR, _FAR)
    costs[np.isnan(weights)] = -np.inf
    costs[~counted] = np.inf
    bound = min(most, costs.shape[1]) - 1
    limits = np.partition(costs, bound, axis=1)[:, bound]
    ranked = []
    for cost, limit, row in zip(costs, limits, counted, strict=True):
        places = np.flatnonzero(row & (cost <= limit))
        ranked.append(places[np.argsort(cost[places], kind="stable")][:most])
    return ranked
