"""The head that is looked at, as large as its room allows, with the cell under the cursor.

A text that does not fit is pooled: at zoom 0 the whole of it, and each step more halves what a cell stands for, down
to one token. Then a part of it is shown, the one around the cursor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment

from attncli.render.axes import LONGEST_LABEL, MARK, titled
from attncli.render.block import Block
from attncli.render.cell_grid import HALF, NARROW, WIDE, CellGrid, GridCell, map_lines
from attncli.render.explore.layer_view import LayerViewCache
from attncli.render.explore.pane import ALONE, KEY, QUERY, pad
from attncli.render.fit import Bounds, crop, join_facts
from attncli.render.heatmap import Heatmap
from attncli.render.legend import legend_line
from attncli.render.palette import BOLD, DIM, Palette

if TYPE_CHECKING:
    from attncli.trace.view import Ramp

_LEAST_WITH_TICKS, _LEAST_WITH_LEGEND = 5, 8  # lines of a room
_LABELS = (LONGEST_LABEL, 6, 0)  # cells of a label
_WITH_NUMBERS, _WITH_WORDS = 4, 6  # characters of a cell, and of a column that has its token above it
_WIDEST_HALF = 4  # characters of a cell that is half of them high
_MOST_MEASURED = 200  # tokens whose longest label is looked for


class CellCursor(NamedTuple):
    """The cell that is looked at."""

    head: int
    query: int
    key: int


class VisibleRange(NamedTuple):
    """Which part of a head is shown: the first row and column of every cell.

    Attributes:
        rows: the first rows; how far they are apart is how many rows a cell stands for.
        columns: likewise.
        cell: how large it is drawn.
        labels: cells of the longest label.
    """

    rows: range
    columns: range
    cell: GridCell
    labels: int


@dataclass(frozen=True)
class LargeHead:
    """One head as large as there is room for.

    Attributes:
        sight: the layer, or its difference.
        cursor: the cell that is looked at; it is always among those that are shown.
        port: the first row and the first column of a part, and how often cells are halved.
        ramp: how far along the colours a number stands; None leaves it to the palette.
        palette: how cells look.
        room: at least 3 lines of 10 cells.
        label: what the head does; empty where nothing is known of it.
    """

    sight: LayerViewCache
    cursor: CellCursor
    port: tuple[int, int, int]
    ramp: Ramp | None
    palette: Palette
    room: Bounds
    label: str = ""

    @cached_property
    def block(self) -> Block:
        """What is drawn."""
        return crop(self._lines(), self.room)

    def at(self, line: int, column: int) -> tuple[int, int] | None:
        """Return the cell at a place; of those that share it the one with the largest number."""
        rows, columns, _, labels = self.window
        found = self._lattice.at(line - self._header, column - self._margin(labels))
        if found is None:
            return None
        places, place = found
        queries = range(rows[places.start], min(rows[places[-1]] + rows.step, self.sight.size[0]))
        keys = slice(columns[place], columns[place] + columns.step)
        cells = self.sight.cells(self.cursor.head, queries)
        sizes = np.where(cells.allowed, np.abs(cells.values), -1)[:, keys]
        row, key = np.unravel_index(int(np.argmax(sizes)), sizes.shape)
        return queries[int(row)], columns[place] + int(key)

    @property
    def window(self) -> VisibleRange:
        """Which part of the head is shown."""
        return self._place[0]

    @property
    def zooms(self) -> int:
        """How many times its cells can be halved."""
        return self._place[1]

    # --- what fits ---

    @property
    def _header(self) -> int:
        return 2 if self.room.lines >= _LEAST_WITH_TICKS else 1

    @property
    def _body(self) -> int:
        """How many lines there are for cells."""
        return self.room.lines - self._header - (self.room.lines >= _LEAST_WITH_LEGEND)

    def _margin(self, labels: int) -> int:
        """How many cells stand at the left of the map, its rows' marks among them."""
        return 1 + self._digits + (1 + labels if labels else 0) + 2 * self._has_marks + 1

    @property
    def _digits(self) -> int:
        return len(str(self.sight.size[0] - 1))

    @cached_property
    def _has_marks(self) -> bool:
        return bool(self.sight.alone[0]) or bool(self.sight.blind(self.cursor.head).any())

    @cached_property
    def _place(self) -> tuple[VisibleRange, int]:
        """Which part is shown, and how many times its cells can be halved."""
        sight, room = self.sight, self.room
        sizes, bounds = sight.size, sight.boundaries
        longest = self._longest_label
        for cell in self._cells:
            high, wide = _lines_of(sizes[0], bounds[0], cell), sizes[1] * cell.columns + bool(bounds[1])
            for labels in dict.fromkeys(min(each, longest) for each in _LABELS):
                if cell.has_number and labels < min(longest, _LABELS[1]):
                    continue  # room is for words first
                if high <= self._body and self._margin(labels) + wide <= room.width:
                    return VisibleRange(range(sizes[0]), range(sizes[1]), cell, labels), 0
        labels = next((each for each in _LABELS if room.width >= 5 * each), 0)
        cell = self._cells[-1]
        # Of a pair of texts a rule takes a line, and what stands above and below it may be half a line each.
        lines = max(self._body - 2 * bool(bounds[0]), 1)
        capacity = lines * cell.rows, max(room.width - self._margin(labels) - bool(bounds[1]), 1)
        whole = sight.steps_of(*(-(-size // most) for size, most in zip(sizes, capacity, strict=True)))
        zooms = (max(whole) - 1).bit_length()
        parts = []
        for size, most, most_step, first, at in zip(
            sizes, capacity, whole, self.port[:2], self.cursor[1:], strict=True
        ):
            step = -(-most_step // 2 ** min(self.port[2], zooms))
            cells, own = -(-size // step), at // step
            shown = min(cells, most)
            start = min(max(first // step, own - shown + 1, 0), own, cells - shown)
            parts.append(range(start * step, min((start + shown) * step, size), step))
        return VisibleRange(parts[0], parts[1], cell, labels), zooms

    @property
    def _longest_label(self) -> int:
        tokens = self.sight.tokens[0]
        if len(tokens) > _MOST_MEASURED:
            return LONGEST_LABEL
        return max(cell_len(self.palette.shortened(token.label, LONGEST_LABEL)) for token in tokens)

    @property
    def _cells(self) -> list[GridCell]:
        """How large cells may be drawn, the largest first: with their number in it, if there are few and in colour."""
        free = self.room.width - self._margin(self._longest_label) - bool(self.sight.boundaries[1])
        each, high = free // self.sight.size[1], self._body // self.sight.size[0]
        lines = max(min(high, (each + 1) // 2), 1)
        wide = min(each, max(2 * lines + 2, _WITH_NUMBERS + 1))
        found = [WIDE]
        # A number says more than a colour; without colours a shade has to stand below it.
        if wide >= _WITH_NUMBERS - (lines > 1) and (self.palette.has_color or lines > 1):
            found.insert(0, GridCell(wide if self.palette.has_color else wide // 2 * 2, 1, lines))
        if not self.palette.has_color:
            return [*found, NARROW]
        return [*found, GridCell(min(max(each, 1), _WIDEST_HALF), HALF.rows), HALF]

    # --- what is drawn ---

    @cached_property
    def _picture(self) -> Heatmap:
        return self.sight.pooled(self.cursor.head, self.window.rows, self.window.columns)

    @cached_property
    def _lattice(self) -> CellGrid:
        return self.sight.lattice(*self.window[:3])

    @property
    def _at(self) -> tuple[int, int]:
        """The place of the cursor among the cells that are shown."""
        rows, columns, *_ = self.window
        return (self.cursor.query - rows.start) // rows.step, (self.cursor.key - columns.start) // columns.step

    def _lines(self) -> Iterator[list[Segment]]:
        """Yield the title, the ticks, the cells, and what their colours say."""
        title = titled("head", self.sight.layer.head_label(self.cursor.head))
        yield join_facts(self._facts(), self.room.width, self.palette, title)
        margin = Segment(" " * self._margin(self.window.labels))
        if self._header > 1:
            yield [margin, *self._ticks()]
        lines, picture, scale = self._lattice.lines, self._picture, self.sight.scale(self.ramp)
        blank = partial(self.sight.blank, *self.window[:2])
        body = map_lines(picture.values, picture.allowed, self._lattice, self.palette, scale, self._at, blank)
        middle = (self.window.cell.lines - 1) // 2  # of the lines of a cell
        for number, (rows, cells) in enumerate(zip(lines[: self._body], body, strict=False)):
            is_named = not rows or number - lines.index(rows) == middle
            yield [*(self._label(rows) if is_named else [margin]), *cells]
        if self.room.lines >= _LEAST_WITH_LEGEND:
            marks = [f"{ALONE} not in what is held"] * any(self.sight.alone) + self._picture.extent.notes_on(scale)
            marks += [f"{MARK} fully masked"] * bool(self.sight.blind(self.cursor.head).any())
            cell = self.window.cell
            yield legend_line(scale, marks, self.palette, self.room.width, min(cell.columns, 2), cell.rows > 1)

    def _facts(self) -> Iterator[str]:
        """Yield what is drawn, what matters most first."""
        layer, (rows, columns, *_) = self.sight.layer, self.window
        yield self.label
        yield f"{layer.measure} − held" if self.sight.pair else layer.measure
        sides = zip((QUERY, KEY), (rows, columns), self.sight.size, strict=True)
        yield " ".join(
            f"{mark} {part.start}–{min(part.start + len(part) * part.step, size) - 1} of {size:,}"
            for mark, part, size in sides
            if len(part) * part.step < size
        )
        if (pool := (rows.step, columns.step)) != (1, 1):
            yield f"largest of {pool[0]}×{pool[1]}"
        if layer.num_groups < layer.num_heads:
            yield f"reads kv head {layer.head(self.cursor.head).key_head} of {layer.num_groups}"
        yield f"{titled('layer', layer.label)}{'' if layer.kind == 'self' else f' {layer.kind}'}"

    def _ticks(self) -> list[Segment]:
        """Return the indices of columns, or what they are called where there is room for words."""
        columns, cell, place = self._lattice.columns, self.window.cell, self._at[1]
        if not cell.has_number:
            return columns.ticks(cell.columns, self.palette, place)
        line = []
        for number, key in enumerate(self.window.columns):
            if number == columns.boundary > 0:
                line.append(Segment(" "))
            text = str(key)
            if cell.columns >= _WITH_WORDS:
                text = self.palette.shortened(self.sight.tokens[1][key].label, cell.columns - 2)
            mark = KEY if number == place else ""
            line.append(pad(cell.aligned(mark + text), cell.columns, BOLD if mark else DIM))
        return line

    def _label(self, rows: range) -> list[Segment]:
        """Return what stands at the left of a line; of several rows that share one, of that under the cursor."""
        width = self._margin(self.window.labels)
        if not rows:
            return [Segment("─" * (width - 1) + " ", DIM)]
        starts, is_current = self.window.rows, self._at[0] in rows
        index = self.cursor.query if is_current else starts[rows.start]
        text = f"{QUERY if is_current else ' '}{index:>{self._digits}}"
        if self.window.labels:
            text += f" {self.palette.shortened(self.sight.tokens[0][index].label, self.window.labels)}"
        style = BOLD if is_current else None
        if not self._has_marks:
            return [pad(text, width, style, "left")]
        queries = range(starts[rows.start], min(starts[rows[-1]] + starts.step, self.sight.size[0]))
        blind = self.sight.blind(self.cursor.head)[queries.start : queries.stop].any()
        mark = MARK if blind else ALONE if not self.sight.alone[0].isdisjoint(queries) else ""
        return [pad(text, width - 3, style, "left"), pad(f" {mark}", 3, BOLD, "left")]


def _lines_of(rows: int, boundary: int, cell: GridCell) -> int:
    """Return how many lines rows take, with the rule between two texts."""
    shared = -(-boundary // cell.rows) - (-(rows - boundary) // cell.rows)
    return shared * cell.lines + bool(boundary)
