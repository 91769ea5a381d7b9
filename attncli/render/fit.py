"""What fits one screen: how large the maps of heads are drawn there, and how many of them.

As long as one of these ways lets all heads stand on the screen, the first that does is taken: a cell as wide as it is
high; two cells in a character, which are as square; blocks of such cells, as long as a map keeps `_PLAIN` of them
each way. Where none does, as many heads are drawn as fit in whole maps, if that is more than one, and else a few, of
the largest blocks that let these fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from rich.cells import cell_len

from attncli.render.axes import Axis
from attncli.render.cell_grid import HALF, NARROW, WIDE, GridCell
from attncli.render.heatmap import GAP, size_of
from attncli.render.palette import Palette

LONG = 64  # tokens; of more, a pipe too has no more than a screen, unless all is asked for in so many words
LINES = 40  # of a screen: of one that says nothing, and of every one that has fewer
_PLAIN = 18  # cells each way with which a pattern is still plain: a head that looks at the token before is no diagonal
_LEAST = 8  # with which heads can be told apart at all
_FEW = 4  # heads, rather than larger maps of fewer
_LABELS = (None, 6, 0)  # cells of the longest word beside a row; None leaves it as it is


class TitleStyle(NamedTuple):
    """What stands above the maps of heads: a longer and a shorter name of each."""

    long: Sequence[str]
    short: Sequence[str]


class GridLayout(NamedTuple):
    """How the maps of heads are drawn.

    Attributes:
        heads: how many are drawn.
        cell: how large a cell is.
        pool: how many rows and columns it stands for.
        rows: the query axis, with labels as long as there is room for.
        is_short: whether titles are the shorter ones.
        lines: what it takes.
    """

    heads: int
    cell: GridCell
    pool: tuple[int, int]
    rows: Axis
    is_short: bool
    lines: int


class Bounds(NamedTuple):
    """Where maps stand.

    Attributes:
        lines: how many.
        width: cells in each.
    """

    lines: int
    width: int


@dataclass(frozen=True)
class HeadMapGroup:
    """The maps of some heads, which have the same rows and columns.

    Attributes:
        titles: of the heads.
        rows: the query axis.
        columns: the key axis.
        keeps_rows: whether rows were chosen, which then stand for themselves as long as they fit.
        palette: how cells look.
    """

    titles: TitleStyle
    rows: Axis
    columns: Axis
    keeps_rows: bool
    palette: Palette

    @property
    def whole_cells(self) -> tuple[GridCell, ...]:
        """How large cells may be drawn that stand for themselves, the largest first."""
        return (WIDE, HALF) if self.palette.has_halves else (WIDE, NARROW)

    def all_heads(self, room: Bounds) -> GridLayout | None:
        """Return how all heads are drawn whole; None where they do not fit."""
        found = (self._tiles(room, cell, (1, 1)) for cell in self.whole_cells)
        return next((tiles for tiles in found if tiles and tiles.heads == len(self.titles.long)), None)

    def best(self, room: Bounds) -> GridLayout:
        """Return how as much is drawn as fits: all heads in small blocks, few heads whole, or a few in larger ones.

        Without halves of characters a cell that is as square as two of them is a block of two rows.
        """
        heads = len(self.titles.long)
        pooled = list(self._pooled(room))
        for tiles in pooled:
            rows, columns = (-(-len(axis) // step) for axis, step in zip(self._axes, tiles.pool, strict=True))
            sizes = rows * (1 if tiles.cell == HALF else 2), columns
            if tiles.heads == heads and min(sizes) >= min(_PLAIN, *map(len, self._axes)):
                return tiles
        whole = [self._tiles(room, self.whole_cells[-1], (1, 1)), *pooled[:1]]
        small = max((tiles for tiles in whole if tiles), key=lambda tiles: tiles.heads, default=None)
        if small is not None and small.pool[1] == 1 and small.heads >= min(2, heads):
            return small
        kept = [tiles for tiles in pooled if tiles.pool[0] == 1] if self.keeps_rows else []
        for found in (kept, pooled):
            for few in range(min(_FEW, heads), 0, -1):
                for tiles in found:
                    if tiles.heads >= few:
                        return tiles
        return self._smallest(room)

    @property
    def _axes(self) -> tuple[Axis, Axis]:
        return self.rows, self.columns

    def _pooled(self, room: Bounds) -> Iterator[GridLayout]:
        """Yield how blocks are drawn, the smallest first."""
        cell = HALF if self.palette.has_halves else NARROW
        longest = max(len(self.rows), len(self.columns))
        pools: dict[tuple[int, int], None] = {}
        # One map alone is no wider than the room; where rows are kept, it need not be as low.
        first = -(-longest // room.width) if len(self.columns) > room.width else 1
        for step in range(first, -(-longest // _LEAST) + 1):
            size = -(-longest // step)
            rows, columns = (-(-len(axis) // size) for axis in self._axes)
            if self.keeps_rows:
                pools[1, columns] = None
            pools[rows * (1 if cell == HALF else 2), columns] = None
        for pool in pools:
            tiles = self._tiles(room, cell, pool)
            if tiles is not None:
                yield tiles

    def _smallest(self, room: Bounds) -> GridLayout:
        """Return one map of as many lines as there are: the words alone may fill the screen."""
        cell = HALF if self.palette.has_halves else NARROW
        rows, columns = (-(-len(axis) // _LEAST) for axis in self._axes)
        pool = (min(2 * rows, len(self.rows)), min(columns, len(self.columns)))
        labels = self._labelled[-1]
        high, _ = size_of(cell, 0, labels.pooled(pool[0]), self.columns.pooled(pool[1]))
        return GridLayout(1, cell, pool, labels, True, high)

    @cached_property
    def _labelled(self) -> list[Axis]:
        """The query axis with ever shorter labels."""
        return [self.rows if longest is None else self.rows.shortened(longest, self.palette) for longest in _LABELS]

    @cached_property
    def _above(self) -> list[int]:
        """Cells of the longest of the longer titles, and of the shorter ones."""
        return [max(map(cell_len, titles)) for titles in self.titles]

    def _pooled_axes(self, pool: tuple[int, int]) -> tuple[Axis, Axis]:
        if pool not in self._sized:
            self._sized[pool] = self.rows.pooled(pool[0]), self.columns.pooled(pool[1])
        return self._sized[pool]

    @cached_property
    def _sized(self) -> dict[tuple[int, int], tuple[Axis, Axis]]:
        return {}

    def _tiles(self, room: Bounds, cell: GridCell, pool: tuple[int, int]) -> GridLayout | None:
        """Return how most heads are drawn with such cells, with the longest labels that let as many stand there."""
        heads = len(self.titles.long)
        found: GridLayout | None = None
        for is_short, above in enumerate(self._above):
            for labels in self._labelled:
                high, wide = size_of(cell, above, *self._pooled_axes(pool))
                per_strip = (room.width - labels.width) // (wide + GAP)
                count = min(per_strip * ((room.lines + 1) // (high + 1)), heads)
                if count > (found.heads if found else 0):
                    strips = -(-count // per_strip)
                    found = GridLayout(count, cell, pool, labels, bool(is_short), strips * (high + 1) - 1)
                    if count == heads:
                        return found
        return found
