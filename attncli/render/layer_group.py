"""The maps of heads that have the same rows and columns, and how they are laid out in some room.

The largest cells are taken with which all heads fit: several characters, with the number in them; two characters in a
line; one; or half of one. Where no cell is that small, cells are joined to blocks, as long as a map has `_PLAIN` of
them each way. Where that does not help either, some heads are drawn whole, or a few in larger blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from rich.cells import cell_len

from attncli.analysis.labels import HeadKey, Label, most_telling, strongest
from attncli.render.axes import Axis, titled
from attncli.render.block import Block
from attncli.render.cell_grid import HALF, NARROW, WIDE, GridCell
from attncli.render.components import Components, MatrixFrame, layer_title
from attncli.render.fit import Bounds, most_heads
from attncli.render.heatmap import GAP, Heatmap, heatmap_of, size_of
from attncli.render.palette import Palette
from attncli.text import layers_named

LARGE = tuple(GridCell(columns, 1, columns // 2) for columns in range(10, 3, -1))
_PLAIN = 18  # cells each way with which a pattern is still plain: a head that looks at the token before is no diagonal
_LEAST = 8  # with which heads can be told apart at all
_FEW = 4  # heads, rather than larger maps of fewer


class GridLayout(NamedTuple):
    """How the maps of heads are drawn.

    Attributes:
        heads: how many are drawn.
        cell: how large a cell is.
        pool: how many rows and columns it stands for.
        titles: which of the forms of titles, the longest of which is the first.
        lines: what it takes.
    """

    heads: int
    cell: GridCell
    pool: tuple[int, int]
    titles: int
    lines: int


@dataclass(frozen=True, eq=False, repr=False)
class LayerGroup:
    """Layers whose maps have the same rows and columns.

    Attributes:
        frames: where each layer is drawn.
        labels: what heads do.
        has_others: whether other layers are shown too, so that it has a name.
        keeps_rows: whether rows were chosen, which then stand for themselves as long as they fit.
        palette: how cells look.
    """

    frames: list[MatrixFrame]
    labels: Mapping[HeadKey, Sequence[Label]]
    has_others: bool
    keeps_rows: bool
    palette: Palette

    @cached_property
    def titles(self) -> Sequence[Sequence[tuple[str, str]]]:
        """Ever shorter titles of the heads: the name of each, and its label."""
        names = [(frame.layer.label, frame.layer.head_label(head)) for frame, head in self.heads]
        if self.has_others:
            long = [f"{_short('layer', layer)} {_short('head', head)}" for layer, head in names]
            short = [f"{layer}.{head}" for layer, head in names]
        else:
            long, short = [titled("head", head) for _, head in names], [_short("head", head) for _, head in names]
        labels = [strongest(self.labels, key) for key in self._keys]
        forms = [(long, labels), (short, labels)] if any(labels) else []
        return [
            list(zip(*form, strict=True)) for form in (*forms, (long, [""] * len(long)), (short, [""] * len(short)))
        ]

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

    def drawn(self, parts: Components, layout: GridLayout) -> Block:
        """Return the maps of all heads, or of as many that show most of what the heads do."""
        chosen = self.shown(layout)
        pictures = [
            self._heatmap(place, layout.pool)._replace(title=title, label=label)
            for place, (title, label) in enumerate(self.titles[layout.titles])
            if self._keys[place] in chosen
        ]
        blind = np.concatenate([frame.blind for frame in self.frames])
        frame = self.frames[0]._replace(rows=self.rows, blind=blind)
        return parts.maps(self._title(layout), frame, pictures, layout.pool, layout.cell)

    def shown(self, layout: GridLayout) -> set[HeadKey]:
        """Return the heads whose maps are drawn: those that show most of what the heads do."""
        return most_telling(self._keys, self.labels, layout.heads)

    @property
    def _keys(self) -> list[HeadKey]:
        return [(frame.layer.layer, frame.layer.kind, head) for frame, head in self.heads]

    @cached_property
    def _heatmap(self) -> Callable[[int, tuple[int, int]], Heatmap]:
        """Returns the map of a head, which is made once while the room for it is looked for."""

        def made(place: int, pool: tuple[int, int]) -> Heatmap:
            frame, head = self.heads[place]
            return heatmap_of(frame.layer.head(head, frame.cells.rows), frame.cells.of_columns, pool)

        return cache(made)

    @cached_property
    def _pooled(self) -> Callable[[tuple[int, int]], tuple[Axis, Axis]]:
        """Returns the axes of blocks of so many rows and columns, which are made once like maps."""
        return cache(lambda pool: (self.rows.pooled(pool[0]), self.columns.pooled(pool[1])))

    def _title(self, layout: GridLayout) -> str:
        heads = sum(frame.layer.num_heads for frame in self.frames)
        counted = f"{layout.heads} of {heads} heads" if layout.heads < heads else "every head"
        layers = [frame.layer for frame in self.frames]
        several = f"{layers_named([each.layer for each in layers])} · {layers[0].kind}"
        title = (layer_title(layers[0]) if len(layers) == 1 else several) + " · " if self.has_others else ""
        title += self.frames[0].layer.measure + f" of {counted}" * (len(self.heads) > 1)
        title += f", largest of {layout.pool[0]}×{layout.pool[1]}" * (layout.pool != (1, 1))
        return title + ", each under its layer.head" * (layout.titles % 2 == 1 and self.has_others)

    @property
    def small(self) -> GridCell:
        """The smallest cell."""
        return HALF if self.palette.has_color else NARROW

    def whole(self, bounds: Bounds, cells: Iterable[GridCell]) -> GridLayout | None:
        """Return how all heads fit, a cell for each query and key, with the first size of cells that lets them."""
        found = most_heads((self._layout(bounds, cell, (1, 1)) for cell in cells), len(self.heads))
        return found if found and found.heads == len(self.heads) else None

    def best(self, bounds: Bounds) -> GridLayout:
        """Return how as much is drawn as fits: all heads in small blocks, few heads whole, or a few in larger ones."""
        whole = [self._layout(bounds, cell, (1, 1)) for cell in (WIDE, NARROW, self.small)]
        pooled = [self._layout(bounds, self.small, pool) for pool in self._pools(bounds)]
        with_all_rows = [layout for layout in pooled if layout.pool[0] == 1]
        ways = [(len(self.heads), filter(self._is_plain, pooled)), (_FEW, whole), (2, whole)]
        ways += [(few, layouts) for layouts in (with_all_rows, pooled) for few in range(_FEW, 0, -1)]
        for least, layouts in ways:
            for layout in layouts:
                if layout.heads >= min(least, len(self.heads)):
                    return layout
        return self.best(Bounds(bounds.lines + 1, bounds.width + 1))  # the words alone fill the screen

    def _is_plain(self, layout: GridLayout) -> bool:
        """Whether maps have enough cells."""
        sizes = len(self.rows), len(self.columns)
        return min(-(-size // step) for size, step in zip(sizes, layout.pool, strict=True)) >= min(_PLAIN, *sizes)

    def _pools(self, bounds: Bounds) -> Iterable[tuple[int, int]]:
        """Return the sizes of blocks, the smallest first; where rows are kept, those of one row too."""
        longest = max(len(self.rows), len(self.columns))
        first = -(-longest // bounds.width) if len(self.columns) > bounds.width else 1
        sizes = dict.fromkeys(-(-longest // -(-longest // step)) for step in range(first, -(-longest // _LEAST) + 1))
        for size in sizes:
            if self.keeps_rows:
                yield 1, size
            yield size, size

    def _layout(self, bounds: Bounds, cell: GridCell, pool: tuple[int, int]) -> GridLayout:
        """Return how most heads are drawn with such cells, with the longest titles that let as many stand there."""
        rows, columns = self._pooled(pool)

        def layouts() -> Iterator[GridLayout]:
            for form, titles in enumerate(self.titles):
                widest = max(cell_len(f"{name} {label}".rstrip()) for name, label in titles)
                high, wide = size_of(cell, widest, rows, columns)
                per_strip = max((bounds.width - self.rows.width) // (wide + GAP), 0)
                heads = min(per_strip * ((bounds.lines + 1) // (high + 1)), len(self.heads))
                yield GridLayout(heads, cell, pool, form, -(-heads // max(per_strip, 1)) * (high + 1) - 1)

        return most_heads(layouts(), len(self.heads)) or GridLayout(0, cell, pool, 0, 0)


def _short(what: str, label: int | str) -> str:
    return f"{what[0].upper()}{label}" if isinstance(label, int) else titled(what, label)
