"""The maps of heads that have the same rows and columns, and how they are laid out in some room.

As long as a layout lets all heads stand there, the first that does is taken: a cell as wide as it is high; two cells in
a character, which are as square; blocks of such cells, as long as a map has `_PLAIN` of them each way. Where none does,
as many heads are drawn as fit in whole maps, if that is more than one, and else a few, of the largest blocks that let
these fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from rich.cells import cell_len

from attncli.render.axes import Axis, titled
from attncli.render.cell_grid import HALF, NARROW, WIDE, GridCell
from attncli.render.components import MatrixFrame, layer_title
from attncli.render.fit import Bounds, most_heads
from attncli.render.heatmap import GAP, Heatmap, heatmap_of, size_of
from attncli.render.palette import Palette
from attncli.text import layers_named
from attncli.trace.layer import LayerTrace

_PLAIN = 18  # cells each way with which a pattern is still plain: a head that looks at the token before is no diagonal
_LEAST = 8  # with which heads can be told apart at all
_FEW = 4  # heads, rather than larger maps of fewer
_LABELS = (None, 6, 0)  # cells of the longest word beside a row; None leaves it as it is


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


@dataclass(frozen=True, eq=False)
class LayerGroup:
    """Layers whose maps have the same rows and columns.

    Attributes:
        frames: where each layer is drawn.
        has_others: whether other layers are shown too, so that it has a name.
        keeps_rows: whether rows were chosen, which then stand for themselves as long as they fit.
        palette: how cells look.
    """

    frames: list[MatrixFrame]
    has_others: bool
    keeps_rows: bool
    palette: Palette

    @cached_property
    def titles(self) -> tuple[Sequence[str], Sequence[str]]:
        """A longer and a shorter name of each head."""
        names = [(frame.layer.label, frame.layer.head_label(head)) for frame, head in self.heads]
        if self.has_others:
            long = [f"{_short('layer', layer)} {_short('head', head)}" for layer, head in names]
            return long, [f"{layer}.{head}" for layer, head in names]
        return [titled("head", head) for _, head in names], [_short("head", head) for _, head in names]

    @cached_property
    def rows(self) -> Axis:
        """The query axis; a row that is blind in a head of one of the layers is marked."""
        return self.frames[0].rows.marking(np.concatenate([frame.blind for frame in self.frames]))

    @property
    def columns(self) -> Axis:
        """The key axis."""
        return self.frames[0].columns

    @cached_property
    def heads(self) -> list[tuple[MatrixFrame, int]]:
        """Each head, with where its layer is drawn."""
        return [(frame, head) for frame in self.frames for head in frame.layer.heads]

    def heatmaps(self, layout: GridLayout) -> dict[int, Heatmap]:
        """Return the maps of all heads, or of as many that differ most, by their places."""
        return {
            place: self._heatmap(place, layout.pool)._replace(title=self.titles[layout.is_short][place])
            for place in self._chosen(layout.heads)
        }

    @cached_property
    def _heatmap(self) -> Callable[[int, tuple[int, int]], Heatmap]:
        """Returns the map of a head, which is made once while the room for it is looked for."""

        def made(place: int, pool: tuple[int, int]) -> Heatmap:
            frame, head = self.heads[place]
            return heatmap_of(frame.layer.head(head, frame.cells.rows), frame.cells.of_columns, pool)

        return cache(made)

    @cached_property
    def _chosen(self) -> Callable[[int], list[int]]:
        def chosen(count: int) -> list[int]:
            found = most_unlike([frame.layer for frame in self.frames], self.rows.indices, count)
            heads = [(place, head) for place, frame in enumerate(self.frames) for head in frame.layer.heads]
            return [heads.index(each) for each in found]

        return cache(chosen)

    def title(self, layout: GridLayout) -> str:
        """Return what the maps are."""
        heads = len(self.heads)
        counted = f"{layout.heads} of {heads} heads" if layout.heads < heads else "every head"
        layers = [frame.layer for frame in self.frames]
        several = f"{layers_named([each.layer for each in layers])} · {layers[0].kind}"
        title = (layer_title(layers[0]) if len(layers) == 1 else several) + " · " if self.has_others else ""
        title += self.frames[0].layer.measure + f" of {counted}" * (heads > 1)
        title += f", largest of {layout.pool[0]}×{layout.pool[1]}" * (layout.pool != (1, 1))
        return title + ", each under its layer.head" * (layout.is_short and self.has_others)

    @property
    def _small(self) -> GridCell:
        return HALF if self.palette.has_halves else NARROW

    def whole(self, bounds: Bounds) -> GridLayout | None:
        """Return how all heads are drawn with a cell for each query and key; None where they do not fit."""
        found = most_heads((self._layout(bounds, cell, (1, 1)) for cell in (WIDE, self._small)), len(self.heads))
        return found if found and found.heads == len(self.heads) else None

    def best(self, bounds: Bounds) -> GridLayout:
        """Return how as much is drawn as fits: all heads in small blocks, few heads whole, or a few in larger ones."""
        pooled = [layout for pool in self._pools(bounds) if (layout := self._layout(bounds, self._small, pool)).heads]
        every = most_heads(filter(self._is_plain, pooled), len(self.heads))
        if every is not None and every.heads == len(self.heads):
            return every
        some = most_heads([self._layout(bounds, self._small, (1, 1)), *pooled[:1]], len(self.heads))
        if some is not None and some.pool[1] == 1 and some.heads >= min(2, len(self.heads)):
            return some
        with_all_rows = [layout for layout in pooled if layout.pool[0] == 1] if self.keeps_rows else []
        for layouts in (with_all_rows, pooled):
            for few in range(min(_FEW, len(self.heads)), 0, -1):
                if found := [layout for layout in layouts if layout.heads >= few]:
                    return found[0]
        return self.best(Bounds(bounds.lines + 1, bounds.width + 1))  # the words alone fill the screen

    def _is_plain(self, layout: GridLayout) -> bool:
        """Whether maps have enough cells; one that is as square as two halves of a character is a block of two rows."""
        sizes = len(self.rows), len(self.columns)
        rows, columns = (-(-size // step) for size, step in zip(sizes, layout.pool, strict=True))
        return min(rows * self._tall, columns) >= min(_PLAIN, *sizes)

    @property
    def _tall(self) -> int:
        """How many rows the block of a square cell has for each of its columns."""
        return 1 if self._small == HALF else 2

    def _pools(self, bounds: Bounds) -> Iterable[tuple[int, int]]:
        """Return the sizes of blocks, the smallest first."""
        longest = max(len(self.rows), len(self.columns))
        pools: dict[tuple[int, int], None] = {}
        # One map alone is no wider than the room; where rows are kept, it need not be as low.
        first = -(-longest // bounds.width) if len(self.columns) > bounds.width else 1
        for step in range(first, -(-longest // _LEAST) + 1):
            size = -(-longest // step)
            rows, columns = (-(-len(axis) // size) for axis in (self.rows, self.columns))
            if self.keeps_rows:
                pools[1, columns] = None
            pools[rows * self._tall, columns] = None
        return pools

    @cached_property
    def _labelled(self) -> list[Axis]:
        """The query axis with ever shorter labels."""
        return [self.rows if longest is None else self.rows.shortened(longest, self.palette) for longest in _LABELS]

    @cached_property
    def _axes(self) -> Callable[[tuple[int, int]], tuple[Axis, Axis]]:
        return cache(lambda pool: (self.rows.pooled(pool[0]), self.columns.pooled(pool[1])))

    def _layout(self, bounds: Bounds, cell: GridCell, pool: tuple[int, int]) -> GridLayout:
        """Return how most heads are drawn with such cells, with the longest labels that let as many stand there."""
        rows, columns = self._axes(pool)

        def layouts() -> Iterator[GridLayout]:
            for is_short, titles in enumerate(self.titles):
                high, wide = size_of(cell, max(map(cell_len, titles)), rows, columns)
                for labels in self._labelled:
                    per_strip = (bounds.width - labels.width) // (wide + GAP)
                    heads = min(per_strip * ((bounds.lines + 1) // (high + 1)), len(self.heads))
                    lines = -(-heads // per_strip) * (high + 1) - 1 if per_strip > 0 else 0
                    yield GridLayout(max(heads, 0), cell, pool, labels, bool(is_short), lines)

        return most_heads(layouts(), len(self.heads)) or GridLayout(0, cell, pool, self.rows, False, 0)


def most_unlike(layers: Sequence[LayerTrace], rows: Sequence[int], count: int) -> Sequence[tuple[int, int]]:
    """Return so many heads that do the most different things, the place of the layer and the index of each."""
    if count == sum(len(layer.heads) for layer in layers):
        return [(place, head) for place, layer in enumerate(layers) for head in layer.heads]
    from attncli.analysis.diverse_heads import most_different  # which few runs need

    return most_different(layers, rows, count)


def _short(what: str, label: int | str) -> str:
    return f"{what[0].upper()}{label}" if isinstance(label, int) else titled(what, label)
