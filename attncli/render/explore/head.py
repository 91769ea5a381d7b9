"""One head as large as its pane allows: its map, pooled where a text does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from rich.segment import Segment

from attncli.render.block import Bounds, crop, join_facts, padded, shortened
from attncli.render.explore.layer_view import LayerViewCache
from attncli.render.explore.pane import KEY, QUERY, CellCursor, PaneContent
from attncli.render.heatmap import legend_line
from attncli.render.matrix import HALF, LONGEST_LABEL, MARK, NARROW, WIDE, CellGrid, GridCell, map_lines, titled
from attncli.render.palette import BOLD, DIM, Palette

if TYPE_CHECKING:
    from attncli.trace.view import Ramp

_LABELS = (LONGEST_LABEL, 6, 0)  # cells of a label
_LARGE, _WITH_WORDS = 4, 6  # characters of a cell, and of a column that has its token above it
_WIDEST_HALF = 4  # characters of a cell of which two share a line
_MOST_MEASURED = 200  # tokens whose longest label is measured


def large_head(
    sight: LayerViewCache, cursor: CellCursor, ramp: Ramp | None, palette: Palette, label: str, room: Bounds
) -> PaneContent:
    """Return a head with its axes and its legend."""
    return _LargeHead(sight, cursor, ramp, palette, label, room).content()


class _LargeHead:
    def __init__(
        self, sight: LayerViewCache, cursor: CellCursor, ramp: Ramp | None, palette: Palette, label: str, room: Bounds
    ) -> None:
        self.sight, self.cursor, self.ramp, self.palette = sight, cursor, ramp, palette
        self.label, self.room = label, room
        self.body = max(room.lines - 2, 1)  # lines of cells, between the ticks and the legend
        self.digits = len(str(sight.size[0] - 1))
        self.has_marks = bool(sight.blind(cursor.head).any())
        self.layout = self._layout()
        self.grid: CellGrid = sight.grid(self.layout.steps, self.layout.cell)
        self.at_cursor = cursor.query // self.layout.steps[0], cursor.key // self.layout.steps[1]

    def content(self) -> PaneContent:
        title = join_facts(
            self._facts(), self.room.width, titled("head", self.sight.layer.head_label(self.cursor.head))
        )
        return PaneContent(crop(self._lines(), self.room), title, self.layout.steps)

    # --- layout ---

    def _margin(self, labels: int) -> int:
        """Return how many cells stand left of the map."""
        return 1 + self.digits + (1 + labels if labels else 0) + 2 * self.has_marks + 1

    def _layout(self) -> _Layout:
        """Return the largest cells with which the whole head fits, or else the smallest ones, pooled."""
        sizes, longest = self.sight.size, self._longest_label
        for cell in self._cells(longest):
            high, wide = -(-sizes[0] // cell.rows) * cell.lines, sizes[1] * cell.columns
            for labels in dict.fromkeys(min(each, longest) for each in _LABELS):
                is_cut = cell.has_number and labels < min(longest, _LABELS[1])  # room is for words first
                if not is_cut and high <= self.body and self._margin(labels) + wide <= self.room.width:
                    return _Layout(self.sight.steps_of(1, 1), cell, labels)
        labels = next((each for each in _LABELS if self.room.width >= 5 * each), 0)
        cell = HALF if self.palette.has_color else NARROW
        lines, columns = self.body * cell.rows, max(self.room.width - self._margin(labels), 1)
        return _Layout(self.sight.steps_of(-(-sizes[0] // lines), -(-sizes[1] // columns)), cell, labels)

    @cached_property
    def _longest_label(self) -> int:
        tokens = self.sight.tokens[0]
        if len(tokens) > _MOST_MEASURED:
            return LONGEST_LABEL
        return max(cell_len(shortened(token.label, LONGEST_LABEL)) for token in tokens)

    def _cells(self, longest: int) -> list[GridCell]:
        """Return the sizes of cells, the largest first: with their number, where there are few."""
        if max(self.sight.size) > self.room.width:
            return []
        each = (self.room.width - self._margin(longest)) // self.sight.size[1]
        high = self.body // self.sight.size[0]
        lines = max(min(high, (each + 1) // 2), 1)
        wide = min(each, max(2 * lines + 2, _LARGE + 1))
        cells, has_color = [WIDE], self.palette.has_color
        # A number says more than a colour; without colours a shade has to stand below it.
        if wide >= _LARGE and (has_color or lines > 1):
            cells.insert(0, GridCell(wide if has_color else wide // 2 * 2, 1, lines))
        halves = [GridCell(min(max(each, 1), _WIDEST_HALF), HALF.rows), HALF]
        return cells + (halves if has_color else [NARROW])

    # --- lines ---

    def _lines(self) -> Iterator[list[Segment]]:
        head, margin = self.cursor.head, Segment(" " * self._margin(self.layout.labels))
        yield [margin, *self._ticks()]
        shown, scale = self.sight.pooled(head, self.layout.steps), self.sight.scale(self.ramp)
        cells = map_lines(shown.values, shown.allowed, self.grid, self.palette, scale, self.at_cursor)
        lines, middle = self.grid.lines, (self.layout.cell.lines - 1) // 2
        for number, (rows, drawn) in enumerate(zip(lines[: self.body], cells, strict=False)):
            is_named = number % self.layout.cell.lines == middle
            yield [*(self._row_label(rows) if is_named else [margin]), *drawn]
        marks = shown.extent.notes_on(scale) + [f"{MARK} fully masked"] * self.has_marks
        cell = self.layout.cell
        yield legend_line(scale, marks, self.palette, self.room.width, min(cell.columns, 2), cell.rows > 1)

    def _facts(self) -> Iterator[str]:
        """Yield facts for the title, the most important first."""
        layer, steps = self.sight.layer, self.layout.steps
        if steps != (1, 1):
            yield f"largest of {steps[0]}×{steps[1]}"
        yield self.label
        yield layer.measure
        if layer.num_groups < layer.num_heads:
            yield f"reads kv head {layer.head(self.cursor.head).key_head} of {layer.num_groups}"
        yield f"{titled('layer', layer.label)}{'' if layer.kind == 'self' else f' {layer.kind}'}"

    def _ticks(self) -> list[Segment]:
        """Return the indices of the columns, or their tokens where there is room."""
        columns, cell, at = self.grid.columns, self.layout.cell, self.at_cursor[1]
        if not cell.has_number:
            return columns.ticks(cell.columns, at)
        line = []
        for key in columns.indices:
            text = str(key)
            if cell.columns >= _WITH_WORDS:
                text = shortened(self.sight.tokens[1][key].label, cell.columns - 2)
            mark = KEY if key == at else ""
            line.append(padded(cell.aligned(mark + text), cell.columns, BOLD if mark else DIM))
        return line

    def _row_label(self, rows: range) -> list[Segment]:
        """Return the label left of a line; of several rows that share one, that of the cursor."""
        width, step = self._margin(self.layout.labels), self.layout.steps[0]
        is_current = self.at_cursor[0] in rows
        index = self.cursor.query if is_current else rows.start * step
        text = f"{QUERY if is_current else ' '}{index:>{self.digits}}"
        if self.layout.labels:
            text += f" {shortened(self.sight.tokens[0][index].label, self.layout.labels)}"
        style = BOLD if is_current else None
        if not self.has_marks:
            return [padded(text, width, style, "<")]
        is_blind = self.sight.blind(self.cursor.head)[rows.start * step : rows.stop * step].any()
        return [padded(text, width - 3, style, "<"), padded(f" {MARK if is_blind else ''}", 3, BOLD, "<")]


class _Layout(NamedTuple):
    steps: tuple[int, int]  # rows and columns of a cell
    cell: GridCell
    labels: int  # cells of the longest label
