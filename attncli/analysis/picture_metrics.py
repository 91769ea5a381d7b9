"""What a head does with pictures: how much it looks at them, in how many places, and whether always at one cell.

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
    """Which positions of a layer are cells of pictures.

    Attributes:
        queries: whether each query is one.
        keys: the keys that are one, grid by grid, row by row.
        shapes: the rows and columns of each grid of these.
    """

    queries: Bool[np.ndarray, " Q"]
    keys: Int[np.ndarray, " C"]
    shapes: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, trace: Trace, layer: LayerTrace) -> PictureCells:
        """Return those of a layer."""
        of_queries, of_keys = (layout.grids for layout in trace.layouts(layer))
        queries = np.zeros(layer.num_queries, bool)
        for grid in of_queries:
            queries[grid.positions] = True
        keys = np.concatenate([np.zeros(0, int), *(grid.positions.ravel() for grid in of_keys)])
        return cls(queries, keys, tuple((grid.rows, grid.columns) for grid in of_keys))

    def sums(self, rows: Int[np.ndarray, " R"], heads: int) -> PictureSums:
        """Return what will be measured of so many heads in some rows."""
        return PictureSums(self, rows, heads)


class PictureSums:
    """What rows of some heads give to cells of pictures, of which one block after the other is added."""

    def __init__(self, cells: PictureCells, rows: Int[np.ndarray, " R"], heads: int) -> None:
        count = len(cells.keys)
        self._cells = cells
        self._is_tower = bool(len(rows)) and bool(cells.queries[rows.max()])
        # Summed over the rows of text, and over those of cells.
        self._weights, self._seers = np.zeros((2, heads, count)), np.zeros((2, heads, count), int)
        self._rows = np.zeros((2, heads), int)
        self._last, self._of_last = np.full(heads, -1), np.zeros((heads, count))

    def add(
        self,
        heads: slice,
        queries: Int[np.ndarray, " Q"],
        weights: Float[np.ndarray, "H Q K"],
        allowed: Bool[np.ndarray, "#H Q K"],
    ) -> None:
        """Take in some rows of some heads; a row that does not count has no allowed key."""
        is_cell = self._cells.queries[queries]
        for of_cells in (0, 1):
            rows = np.flatnonzero(is_cell == of_cells)
            if not len(rows):
                continue
            may, own = allowed[:, rows][..., self._cells.keys], weights[:, rows]
            sees = np.bitwise_or.reduce(may, axis=-1)
            if not sees.all():  # such a row may be no numbers
                own = np.where(sees[..., None], own, 0.0)
            self._weights[of_cells, heads] += own.sum(axis=1)[:, self._cells.keys]
            self._seers[of_cells, heads] += may.sum(axis=1)
            self._rows[of_cells, heads] += sees.sum(axis=1)
            if not of_cells:
                places = np.broadcast_to(np.where(sees, queries[rows], -1), own.shape[:2])
                last = own[np.arange(len(own)), places.argmax(axis=1)][:, self._cells.keys]
                is_later = places.max(axis=1) > self._last[heads]
                self._of_last[heads] = np.where(is_later[:, None], last, self._of_last[heads])
                self._last[heads] = np.maximum(self._last[heads], places.max(axis=1))

    def metrics(self, uniform: PictureSums | None = None) -> tuple[Float[np.ndarray, "N M"], Float[np.ndarray, " N"]]:
        """Return `OF_PICTURES`, and what uniform heads give to each head's heaviest region; NaN is not defined.

        `spatial_entropy` is that of Kang et al. 2025 ("Your Large Vision-Language Model Only Needs A Few Attention
        Heads For Visual Grounding", arXiv 2503.06287): the cells above the mean of the map fall into regions C_i that
        touch at sides or corners, and H = −Σ P(C_i) log P(C_i) with P(C_i) = |C_i| / Σ_j |C_j|, where |C_i| counts
        cells. `region` is a weight, and its regions are of cells above twice the mean, as in the authors' program: half
        of a picture is no place in it.

        `visual_sink` is the mean weight that one position has from the rows that see it, its importance score in Gu et
        al. 2024 (arXiv 2410.10781), of the cell that has most. Rows of text and of cells count alike, for a sink is
        looked at from everywhere; a late cell, which few rows see, is no sink. Kang et al. 2025 ("See What You Are
        Told: Visual Attention Sink in Large Multimodal Models", arXiv 2503.03321) find such cells by a few dimensions
        of their hidden states, which attention does not tell.
        """
        maps = self._maps()
        elsewhere = ~_heaviest(self._regions(maps, 2), maps)
        own, others = (
            np.where(elsewhere & ~np.isnan(each), 0, each).sum(axis=-1)
            for each in (maps, maps if uniform is None else uniform._maps())
        )
        with np.errstate(invalid="ignore", divide="ignore"):  # 0/0 is the NaN of what is not defined
            found = [self._image(), _entropy(self._regions(maps, 1)), own, self._visual_sink()]
        return np.column_stack(found), others

    def _maps(self) -> Float[np.ndarray, "N C"]:
        """Return the weight of each cell, of the last row of text or in the mean of all rows; NaN without a row."""
        rows = self._rows.sum(axis=0)[:, None] if self._is_tower else self._rows[0, :, None]
        maps = self._weights.sum(axis=0) / np.maximum(rows, 1) if self._is_tower else self._of_last
        return np.where(rows > 0, maps, np.nan)

    def _image(self) -> Float[np.ndarray, " N"]:
        groups = slice(2 if self._is_tower else 1)
        return self._weights[groups].sum(axis=(0, 2)) / self._rows[groups].sum(axis=0)

    def _visual_sink(self) -> Float[np.ndarray, " N"]:
        """Return the largest mean weight of one cell, over the rows that may attend to it, and half of all at least."""
        least = self._rows.sum(axis=0)[:, None] / 2
        means = self._weights.sum(axis=0) / np.maximum(self._seers.sum(axis=0), least)
        return np.where(self._rows[1] > 1, means.max(axis=-1), np.nan)  # rows of text alone ask for one thing

    def _regions(self, maps: Float[np.ndarray, "N C"], times: int) -> Int[np.ndarray, "N C"]:
        """Return the number of the region of each cell, from 1 on; 0 is a cell not above so many times the mean."""
        is_above = maps > maps.mean(axis=-1, keepdims=True) * times * (1 + _NOISE)
        found, start = np.zeros(maps.shape, int), 0
        for rows, columns in self._cells.shapes:
            own = slice(start, start := start + rows * columns)
            touching = _touching(is_above[:, own].reshape(-1, rows, columns)).reshape(len(maps), -1)
            found[:, own] = np.where(touching > 0, touching + own.start, 0)
        return found


def _summed(regions: Int[np.ndarray, "N C"], values: Float[np.ndarray, "N C"]) -> Float[np.ndarray, "N C"]:
    """Return for each head the sum of the cells of each region, by its number less one."""
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
    place = _summed(regions, np.nan_to_num(maps)).argmax(axis=-1)
    return (regions > 0) & (regions == place[:, None] + 1)


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
