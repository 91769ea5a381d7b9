"""Maps of heads whose rows and columns are the same, and how they are laid out in some room."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment

from attncli.analysis.labels import HeadKey, Label, most_telling, strongest
from attncli.render.axes import Axis, mark_note, titled
from attncli.render.block import Block, block, hstack, in_words, stack
from attncli.render.cell_grid import HALF, NARROW, WIDE, GridCell
from attncli.render.components import Components, MatrixFrame, layer_title
from attncli.render.fit import Bounds, crop, most_heads
from attncli.render.heatmap import GAP, Extent, heatmap_of, heatmaps, size_of
from attncli.render.legend import legend, legend_line
from attncli.render.palette import BOLD
from attncli.render.sentence import head_name
from attncli.text import layers_named

# Cells that are as large as there is room for, with their numbers.
LARGE = (*(GridCell(columns, 1, columns // 2) for columns in range(10, 3, -1)), GridCell(5, 1), GridCell(4, 1))
_PLAIN = 18  # cells each way with which a pattern is still plain: a head that looks at the token before is no diagonal
_LEAST = 8  # with which heads can be told apart at all
_FEW = 4  # heads, rather than larger maps of fewer
_LEGEND = 50  # cells of the colours and the usual marks


class GridLayout(NamedTuple):
    """Size and number of drawn maps."""

    heads: int
    cell: GridCell
    pool: tuple[int, int]  # rows and columns that a cell stands for
    titles: int  # the form of titles, 0 is the longest
    lines: int


@dataclass(frozen=True, eq=False, repr=False)
class LayerGroup:
    """Layers whose maps have the same rows and columns."""

    frames: list[MatrixFrame]
    labels: Mapping[HeadKey, Sequence[Label]]
    has_others: bool  # other layers are shown too, so that it has a name
    keeps_rows: bool  # rows were chosen, and stand for themselves as long as they fit
    has_color: bool

    @cached_property
    def heads(self) -> dict[HeadKey, MatrixFrame]:
        """Each head, with where its layer is drawn."""
        return {
            (frame.layer.layer, frame.layer.kind, head): frame for frame in self.frames for head in frame.layer.heads
        }

    @cached_property
    def titles(self) -> list[list[tuple[str, str]]]:
        """Ever shorter titles of the heads: the name of each, and its label."""
        names = [(frame.layer, head) for (_, _, head), frame in self.heads.items()]
        short = [head_name(layer, head) for layer, head in names]
        long = short if self.has_others else [titled("head", layer.head_label(head)) for layer, head in names]
        labels = [strongest(self.labels, key) for key in self.heads]
        return [list(zip(*form, strict=True)) for form in ((long, labels), (short, labels), (short, [""] * len(short)))]

    @cached_property
    def rows(self) -> Axis:
        """The query axis; a row that is blind in a head of one of the layers is marked."""
        return self.frames[0].rows.marking(self._blind)

    @property
    def _blind(self) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        return np.concatenate([frame.blind for frame in self.frames])

    def above(self, width: int) -> int:
        """Return how many lines the title and the legend take, with a blank one below the maps."""
        longest = cell_len(self._title(GridLayout(1, WIDE, (99, 99), 0, 0)))
        return 2 if longest + 3 + _LEGEND <= width else 2 + -(-longest // width) if width > _LEGEND else 4

    def shown(self, layout: GridLayout) -> set[HeadKey]:
        """Return the heads whose maps are drawn: those that show most of what the heads do."""
        return most_telling([*self.heads], self.labels, layout.heads)

    def drawn(self, parts: Components, layout: GridLayout) -> Block:
        """Return the maps under what their cells mean."""
        chosen, columns, pictures = self.shown(layout), self.frames[0].columns, []
        for (key, frame), (title, label) in zip(self.heads.items(), self.titles[layout.titles], strict=True):
            if key in chosen:
                head = frame.layer.head(key[2], frame.cells.rows)
                picture = heatmap_of(head, frame.cells.of_columns, layout.pool)
                pictures.append(picture._replace(title=title, label=label))
        extent = Extent.joined([picture.extent for picture in pictures])
        marks = [mark for mark in (*extent.notes_on(parts.scale), mark_note(self._blind)) if mark]
        look = (parts.palette, parts.room)
        maps = heatmaps(pictures, self.rows, columns, layout.pool, *look, parts.scale, layout.cell)
        return stack([self._header(parts, layout, marks), maps])

    def _header(self, parts: Components, layout: GridLayout, marks: Sequence[str]) -> Block:
        width, palette, cells = parts.room, parts.palette, (min(layout.cell.columns, 2), layout.cell == HALF)
        title = stack(block([[Segment(line, BOLD)]]) for line in in_words(self._title(layout), width))
        left = self.above(width) - 1 - len(title.lines)
        if left > 1:
            return stack([title, crop(legend(parts.scale, marks, palette, width, *cells).lines, Bounds(left, width))])
        room = width if left else width - title.width - 3
        key = block([legend_line(parts.scale, marks, palette, max(room, 1), *cells)])
        return stack([title, key]) if left else hstack([title, key], 3)

    def _title(self, layout: GridLayout) -> str:
        heads = sum(frame.layer.num_heads for frame in self.frames)
        counted = f"{layout.heads} of {heads} heads" if layout.heads < heads else "every head"
        layers = [frame.layer for frame in self.frames]
        several = f"{layers_named([each.layer for each in layers])} · {layers[0].kind}"
        title = (layer_title(layers[0]) if len(layers) == 1 else several) + " · " if self.has_others else ""
        title += layers[0].measure + f" of {counted}" * (len(self.heads) > 1)
        return title + f", largest of {layout.pool[0]}×{layout.pool[1]}" * (layout.pool != (1, 1))

    # --- layouts ---

    @property
    def small(self) -> GridCell:
        """The smallest cell."""
        return HALF if self.has_color else NARROW

    def whole(self, bounds: Bounds, cell: GridCell) -> GridLayout | None:
        """Return how the maps of all heads fit in cells of a size, or None where they do not."""
        layout = self._layout(bounds, cell, (1, 1))
        return layout if layout.heads == len(self.heads) else None

    def reduced(self, bounds: Bounds) -> GridLayout:
        """Return how all heads fit in small blocks of cells, or else how some do."""
        least = min(_FEW, len(self.heads))
        pooled = [self._layout(bounds, self.small, pool) for pool in self._pools(bounds)]
        whole = [self._layout(bounds, cell, (1, 1)) for cell in (WIDE, NARROW, self.small)]
        for wanted, layouts in ((len(self.heads), filter(self._is_plain, pooled)), (least, whole), (least, pooled)):
            if found := next((layout for layout in layouts if layout.heads >= wanted), None):
                return found
        most = max(pooled, key=lambda layout: layout.heads)
        return most if most.heads else self.reduced(Bounds(bounds.lines + 1, bounds.width + 1))  # words fill the screen

    def _is_plain(self, layout: GridLayout) -> bool:
        sizes = len(self.rows), len(self.frames[0].columns)
        return min(-(-size // step) for size, step in zip(sizes, layout.pool, strict=True)) >= min(_PLAIN, *sizes)

    def _pools(self, bounds: Bounds) -> Iterator[tuple[int, int]]:
        """Yield the sizes of blocks, the smallest first; where rows are kept, those of one row too."""
        columns = len(self.frames[0].columns)
        longest = max(len(self.rows), columns)
        first = -(-longest // bounds.width) if columns > bounds.width else 1
        for size in dict.fromkeys(
            -(-longest // -(-longest // step)) for step in range(first, -(-longest // _LEAST) + 1)
        ):
            if self.keeps_rows:
                yield 1, size
            yield size, size

    def _layout(self, bounds: Bounds, cell: GridCell, pool: tuple[int, int]) -> GridLayout:
        rows, columns = self.rows.pooled(pool[0]), self.frames[0].columns.pooled(pool[1])

        def layouts() -> Iterator[GridLayout]:
            for form, titles in enumerate(self.titles):
                widest = max(cell_len(f"{name} {label}".rstrip()) for name, label in titles)
                high, wide = size_of(cell, widest, rows, columns)
                per_strip = max((bounds.width - self.rows.width) // (wide + GAP), 0)
                heads = min(per_strip * ((bounds.lines + 1) // (high + 1)), len(self.heads))
                yield GridLayout(heads, cell, pool, form, -(-heads // max(per_strip, 1)) * (high + 1) - 1)

        return most_heads(layouts(), len(self.heads)) or GridLayout(0, cell, pool, 0, 0)
