"""Metrics of heads on pictures: the weight on them, on their regions, and on one cell that all rows share.

Rows that may attend to no cell do not count. A head's map is the weights of the last row of text on the cells. Where
the last row is a cell itself, as in a vision transformer, it is the mean of all rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.trace.layer import LayerTrace
from attncli.trace.trace import Trace

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

_NOISE = 1e-5  # relative, by which weights in float32 that are all the same come above their mean


class PictureCells(NamedTuple):
    """Positions of a layer that are cells of pictures."""

    queries: Bool[np.ndarray, " Q"]  # whether each query is one
    keys: Int[np.ndarray, " C"]  # those that are one, grid by grid, row by row
    shapes: tuple[tuple[int, int], ...]  # the rows and columns of each grid of these

    @classmethod
    def of(cls, trace: Trace, layer: LayerTrace) -> PictureCells | None:
        """Return those of a layer; None where no key is one."""
        of_queries, of_keys = (layout.grids for layout in trace.layouts(layer))
        queries = np.zeros(layer.num_queries, bool)
        for grid in of_queries:
            queries[grid.positions] = True
        keys = np.concatenate([np.zeros(0, int), *(grid.positions.ravel() for grid in of_keys)])
        return cls(queries, keys, tuple((grid.rows, grid.columns) for grid in of_keys)) if len(keys) else None


class PictureSums:
    """Sums of the weights of some heads on cells of pictures, a block of rows at a time."""

    def __init__(self, cells: PictureCells, rows: Int[np.ndarray, " R"], heads: int) -> None:
        self._cells, count = cells, len(cells.keys)
        self._is_tower = bool(len(rows)) and bool(cells.queries[rows.max()])
        # Over all rows that see a cell: weights, rows that may attend to each, all of them, those that are cells.
        self._weights, self._seers = np.zeros((heads, count)), np.zeros((heads, count), int)
        self._rows, self._rows_of_cells = np.zeros((2, heads), int)
        # Over the rows of text, or in a tower over all: the weight on cells, their number, the last one and its cells.
        self._image, self._counted = np.zeros(heads), np.zeros(heads, int)
        self._last, self._of_last = np.full(heads, -1), np.zeros((heads, count))

    def add(
        self,
        heads: slice,
        queries: Int[np.ndarray, " Q"],
        weights: Float[np.ndarray, "H Q K"],
        allowed: Bool[np.ndarray, "#H Q K"],
    ) -> None:
        """Add some rows of some heads; a row that does not count has no allowed key."""
        may = np.broadcast_to(allowed, weights.shape)[..., self._cells.keys]
        on_cells = np.where(may, weights[..., self._cells.keys], 0.0)
        sees, is_cell = may.any(axis=-1), self._cells.queries[queries]
        counts = sees & (self._is_tower | ~is_cell)
        self._weights[heads] += on_cells.sum(axis=1)
        self._seers[heads] += may.sum(axis=1)
        self._rows[heads] += sees.sum(axis=1)
        self._rows_of_cells[heads] += (sees & is_cell).sum(axis=1)
        self._image[heads] += on_cells.sum(axis=-1, where=counts[..., None]).sum(axis=1)
        self._counted[heads] += counts.sum(axis=1)
        places = np.where(counts, queries, -1)
        is_later = places.max(axis=1) > self._last[heads]
        self._of_last[heads][is_later] = on_cells[np.arange(len(on_cells)), places.argmax(axis=1)][is_later]
        self._last[heads] = np.maximum(self._last[heads], places.max(axis=1))

    def metrics(self, regions_of: PictureSums | None = None) -> Float[np.ndarray, "N M"]:
        """Return `OF_PICTURES`, with `region` the heaviest one of other heads if given; NaN is not defined.

        `spatial_entropy` is that of Kang et al. 2025 (arXiv 2503.06287), over regions of touching cells above the mean
        of the map. Those of `region` are above twice the mean, as in the authors' program. `visual_sink` is the
        importance score of Gu et al. 2024 (arXiv 2410.10781), of the cell that has most: rows of text and of cells
        count alike, and a late cell, which few rows see, is no sink.
        """
        maps, chosen = self._maps(), (regions_of or self)._maps()
        is_outside = ~_heaviest(self._regions(chosen, 2), chosen) & ~np.isnan(chosen)
        region = np.where(is_outside, 0, maps).sum(axis=-1)
        with np.errstate(invalid="ignore", divide="ignore"):  # 0/0 is the NaN of what is not defined
            sink = (self._weights / np.maximum(self._seers, self._rows[:, None] / 2)).max(axis=-1)
            sink = np.where(self._rows_of_cells > 1, sink, np.nan)  # rows of text alone ask for one thing
            columns = self._image / self._counted, _entropy(self._regions(maps, 1)), region, sink
        return np.column_stack([np.broadcast_to(column, len(region)) for column in columns])

    def _maps(self) -> Float[np.ndarray, "N C"]:
        """Return the weight of each cell, of the last row of text or in the mean of all rows; NaN without a row."""
        maps = self._weights / np.maximum(self._counted, 1)[:, None] if self._is_tower else self._of_last
        return np.where(self._counted[:, None] > 0, maps, np.nan)

    def _regions(self, maps: Float[np.ndarray, "N C"], times: int) -> Int[np.ndarray, "N C"]:
        """Return the number of the region of each cell, from 1 on; 0 is a cell below this multiple of the mean."""
        is_above = maps > maps.mean(axis=-1, keepdims=True) * times * (1 + _NOISE)
        numbers, start = np.zeros(maps.shape, int), 0
        for rows, columns in self._cells.shapes:
            of_grid = slice(start, start := start + rows * columns)
            touching = _touching(is_above[:, of_grid].reshape(-1, rows, columns)).reshape(len(maps), -1)
            numbers[:, of_grid] = np.where(touching > 0, touching + of_grid.start, 0)
        return numbers


def _summed(regions: Int[np.ndarray, "N C"], values: Float[np.ndarray, "N C"]) -> Float[np.ndarray, "N C"]:
    """Return the sum of the cells of each region of each head, by its number less one."""
    heads, count = regions.shape
    places = np.arange(heads)[:, None] * (count + 1) + regions
    return np.bincount(places.ravel(), values.ravel(), heads * (count + 1)).reshape(heads, -1)[:, 1:]


def _entropy(regions: Int[np.ndarray, "N C"]) -> Float[np.ndarray, " N"]:
    """Return the entropy of the regions' shares of the cells; NaN where there is no region."""
    sizes = _summed(regions, np.ones(regions.shape))
    shares = sizes / sizes.sum(axis=-1, keepdims=True)
    return 0.0 - np.sum(shares * np.log(np.where(shares > 0, shares, 1)), axis=-1)


def _heaviest(regions: Int[np.ndarray, "N C"], maps: Float[np.ndarray, "N C"]) -> Bool[np.ndarray, "N C"]:
    """Return which cells are those of the region with most weight."""
    region = _summed(regions, np.nan_to_num(maps)).argmax(axis=-1)
    return (regions > 0) & (regions == region[:, None] + 1)


def _touching(is_in: Bool[np.ndarray, "N rows columns"]) -> Int[np.ndarray, "N rows columns"]:
    """Return the same number, from 1 on, for cells that touch one another, and 0 for those that are not in.

    Each cell takes the highest number around it until no cell takes another.
    """
    _, rows, columns = is_in.shape
    numbers = np.where(is_in, np.arange(1, rows * columns + 1).reshape(rows, columns), 0)
    while True:
        padded = np.pad(numbers, ((0, 0), (1, 1), (1, 1)))
        across = np.maximum(np.maximum(padded[..., :-2], padded[..., 2:]), padded[..., 1:-1])
        around = np.maximum(np.maximum(across[:, :-2], across[:, 2:]), across[:, 1:-1])
        spread = np.where(is_in, around, 0)
        if np.array_equal(spread, numbers):
            return numbers
        numbers = spread
