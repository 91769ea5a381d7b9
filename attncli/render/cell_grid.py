"""Grid of the cells of a map, and their lines, with a cursor on one of them if there is one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.segment import Segment
from rich.style import Style

from attncli.render.axes import Axis
from attncli.render.matrix import number_text
from attncli.render.palette import BOLD, DIM, Palette, Scale

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    Line = list[tuple[str, Style | None]]  # a glyph and its style for each column


class GridCell(NamedTuple):
    """Size of a cell of a map."""

    columns: int  # characters that it is wide; one of more than four, with a line of its own, has its number in it
    rows: int  # how many of them share a line, one above the other
    lines: int = 1  # that it is high

    @property
    def has_number(self) -> bool:
        """Whether it has room for its number."""
        return self.rows == 1 and self.columns > len("0.12")

    def aligned(self, text: str) -> str:
        """Return what is written in it: in the middle of one of several lines, and else at its right."""
        return text.center(self.columns) if self.lines > 1 else text.rjust(self.columns)


_MARKS = {"·", ".", "0", "+", "-", "I", "-I", "X"}
WIDE, NARROW, HALF = GridCell(2, 1), GridCell(1, 1), GridCell(1, 2)


class CellGrid(NamedTuple):
    """Grid of the cells of a map."""

    rows: Axis
    columns: Axis
    cell: GridCell

    @property
    def lines(self) -> list[range]:
        """The rows that each line shows; the rule between two texts shows none."""
        lines: list[range] = []
        for text in (range(self.rows.boundary), range(self.rows.boundary, len(self.rows))):
            lines += [range(0)] if lines else []
            for start in range(0, len(text), self.cell.rows):
                lines += [text[start : start + self.cell.rows]] * self.cell.lines
        return lines

    @property
    def width(self) -> int:
        """How many cells of a line it takes."""
        return len(self.columns) * self.cell.columns + bool(self.columns.boundary)

    def at(self, line: int, column: int) -> tuple[range, int] | None:
        """Return the rows and the column that stand at a place; None where no cell does."""
        bound = self.columns.boundary
        rule = bound * self.cell.columns
        lines = self.lines
        if not (0 <= line < len(lines) and lines[line] and 0 <= column < self.width) or (bound and column == rule):
            return None
        return lines[line], (column - bool(bound and column > rule)) // self.cell.columns


def map_lines(
    values: Float[np.ndarray, "Q K"],
    allowed: Bool[np.ndarray, "Q K"],
    lattice: CellGrid,
    palette: Palette,
    scale: Scale,
    cursor: tuple[int, int] | None = None,
    blank: Callable[[int, int], str] | None = None,
    digits: int = 2,
) -> list[list[Segment]]:
    """Return the cells of a map in lines, with rules where a second text begins.

    A cell is masked where it is not `allowed`, and `blank` says what is written there instead of the mark. The cell
    under the `cursor`, a row and a column, is marked in a way that needs no colour.
    """
    columns, cell = lattice.columns, lattice.cell
    texts = range(lattice.rows.boundary), range(lattice.rows.boundary, len(lattice.rows))
    lines: list[list[Segment]] = []
    for rows in filter(None, texts):
        if rows.start:
            rules = ["─" * (len(columns) * cell.columns)]
            if place := columns.boundary * cell.columns:
                rules = [rules[0][:place], "┼", rules[0][place:]]
            lines.append([Segment("".join(rules), DIM)])
        part = slice(rows.start, rows.stop)
        drawn, below = _cells(values[part], allowed[part], palette, scale, cell, digits)
        if blank is not None and cell.rows == 1:
            for row, column in np.argwhere(~allowed[part]).tolist():
                drawn[row][column] = (cell.aligned(blank(rows.start + row, column)), DIM)
        if cursor is not None and cursor[0] in rows:
            own = tuple(slice(place, place + 1) for place in cursor)
            style = palette.cells(values[own], allowed[own], scale, 1)[0][0][1] if allowed[cursor] else None
            line = drawn[(cursor[0] - rows.start) // cell.rows]
            glyph = line[cursor[1]][0].strip()
            marked = f"▸{glyph}" if cell.has_number else f"[{' ' * (cell.columns - 2)}]"
            glyph = "◆" if cell.columns == 1 else marked
            line[cursor[1]] = (cell.aligned(glyph), BOLD if style is None else style + BOLD)
        for number, line in enumerate(drawn):
            around = [_segments(below[number], columns.boundary, palette)] * (cell.lines - 1) if cell.lines > 1 else []
            middle = (cell.lines - 1) // 2
            lines += [*around[:middle], _segments(line, columns.boundary, palette), *around[middle:]]
    return lines


def _cells(
    values: Float[np.ndarray, "Q K"],
    allowed: Bool[np.ndarray, "Q K"],
    palette: Palette,
    scale: Scale,
    cell: GridCell,
    digits: int,
) -> tuple[list[Line], list[Line]]:
    """Return what is written in the middle line of cells, and in the others, if they have some."""
    width = cell.columns
    if cell.rows > 1:
        halves = palette.halves(values, allowed, scale)  # where the letter of odd ones stands once
        return [
            [(each * width if each in " ▀▄" else each.rjust(width), style) for each, style in line] for line in halves
        ], []
    drawn = palette.cells(values, allowed, scale, min(width, WIDE.columns))
    if width <= WIDE.columns:
        return drawn, []
    is_number = (np.isfinite(values) & allowed & cell.has_number).tolist()
    first = [
        [
            (cell.aligned(short_number(value, digits, width - 1) if is_one else glyph.strip()), style)
            for (glyph, style), value, is_one in zip(*line, strict=True)
        ]
        for line in zip(drawn, values.tolist(), is_number, strict=True)
    ]
    # Below a number stands a shade, but no mark once more.
    below = [
        [((glyph * (width // 2) if glyph.strip() not in _MARKS else "").ljust(width), style) for glyph, style in line]
        for line in drawn
    ]
    return first, below


def short_number(value: float, digits: int, width: int) -> str:
    """Return a number in at most `width` characters, with fewer digits if need be; empty where none fits."""
    for fewer in range(digits, -1, -1):
        text = number_text(value, fewer)
        if len(text := text.removesuffix(".")) <= width:
            return text
    return ""


def _segments(line: Line, boundary: int, palette: Palette) -> list[Segment]:
    """Return a line's cells, neighbours of one style as one segment, with a rule before a second text."""
    if boundary:
        return [
            *_segments(line[:boundary], 0, palette),
            Segment("│", DIM),
            *_segments(line[boundary:], 0, palette),
        ]
    runs = [list(run) for _, run in groupby(line, key=lambda cell: id(cell[1]))]  # comparing styles costs more
    return [Segment("".join([glyph for glyph, _ in run]), run[0][1]) for run in runs]
