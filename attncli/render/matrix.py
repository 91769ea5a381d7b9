"""A matrix in lines: its axes, its numbers in columns, and its cells as colours.

No number is ever split, and columns that do not fit into a line go on below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style

from attncli.render.block import COMFORTABLE, Block, block, hstack, padded, shortened, stack
from attncli.render.palette import BOLD, DIM, Palette, Scale
from attncli.trace.tokens import Token, Tokens

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    Line = list[tuple[str, Style | None]]  # a glyph and its style for each column


LONGEST_LABEL = 12
MARK = "!"  # of a row that may attend to no key
# At every how many places a tick or a label stands.
STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


@dataclass(frozen=True, repr=False)
class Axis:
    """The rows or the columns of a matrix."""

    labels: tuple[str, ...]  # fit for the output
    indices: tuple[int, ...]  # the position of each one
    marked: frozenset[int] = frozenset()  # the places of those that carry `MARK`

    @classmethod
    def of_tokens(cls, tokens: Tokens, chosen: Sequence[int], predicted: Mapping[int, Token] | None = None) -> Axis:
        """Return the axis of the chosen tokens, each with the token that it predicted, if one is known."""
        shown: list[Token] = [tokens[index] for index in chosen]
        labels = [shortened(token.label, LONGEST_LABEL) for token in shown]
        for place, index in enumerate(chosen):
            if predicted and index in predicted:
                labels[place] += " → " + shortened(predicted[index].label, LONGEST_LABEL)
        return cls(tuple(labels), tuple(chosen))

    def __len__(self) -> int:
        """How many rows or columns."""
        return len(self.labels)

    def marking(self, blind: Bool[np.ndarray, "P Q"]) -> Axis:
        """Return the axis with a mark at the rows that may attend to no key in one of the planes."""
        return replace(self, marked=frozenset(np.flatnonzero(blind.any(axis=0)).tolist()))

    def pooled(self, step: int) -> Axis:
        """Return the axis of every `step`-th place, marked if one up to the next is."""
        return Axis(self.labels[::step], self.indices[::step], frozenset(place // step for place in self.marked))

    @cached_property
    def digits(self) -> int:
        """How many digits the longest index has."""
        return len(str(max(self.indices)))

    @cached_property
    def width(self) -> int:
        """How many cells the row labels take."""
        longest = max(map(cell_len, self.labels))
        return self.digits + (1 + longest if longest else 0) + (2 if self.marked else 0)

    def row_labels(self, header_lines: int, height: int = 1) -> Block:
        """Return `index label` for every row, which is so high, below as many blank lines as the matrix has headers."""
        digits, width = self.digits, self.width
        margin = 2 if self.marked else 0  # a column of its own, where no token that is called so is taken for a mark
        blank, lines = [Segment(" " * width)], []
        for place, (index, label) in enumerate(zip(self.indices, self.labels, strict=True)):
            name = padded(f"{index:>{digits}} {label}".rstrip(), width - margin, align="<")
            above = (height - 1) // 2  # where the numbers of cells stand
            mark = padded(MARK if place in self.marked else "", margin, BOLD)
            lines += [*[blank] * above, [name, mark], *[blank] * (height - 1 - above)]
        return Block([blank] * header_lines + lines, width)

    def header(self, cell_width: int) -> list[Segment]:
        """Return the header of columns: what each is called, or its index; of narrow ones as many as have room."""
        if cell_width <= 2:
            return self.ticks(cell_width)
        has_room = any(self.labels) and max(map(cell_len, self.labels)) < cell_width
        texts = self.labels if has_room else map(str, self.indices)
        placed = (" " * ((cell_width - cell_len(text)) // 2) + text for text in texts)
        return [Segment(set_cell_size(text, cell_width), DIM) for text in placed]

    def ticks(self, cell_width: int, marked: int | None = None) -> list[Segment]:
        """Return the header of narrow columns: as many of their indices as have room.

        The place that is `marked` has a mark instead.
        """
        last = len(str(self.indices[-1]))
        step = next(step for step in STEPS if step * cell_width > last)
        width = len(self) * cell_width
        mark = None if marked is None else (marked + 1) * cell_width - 1
        line = ""
        for place in range(0, len(self), step):
            start, text = place * cell_width, str(self.indices[place])
            is_free = mark is None or not start - 1 <= mark <= start + len(text)
            if is_free and len(line) <= start and start + len(text) <= width:
                line += " " * (start - len(line)) + text
        line = line[:width].ljust(width)
        if mark is None:
            return [Segment(line, DIM)]
        return [Segment(line[:mark], DIM), Segment("▾", BOLD), Segment(line[mark + 1 :], DIM)]


def mark_note(blind: Bool[np.ndarray, "P Q"]) -> str:
    """Return what the mark of an axis means; nothing where no row has it."""
    if not blind.any():
        return ""
    is_everywhere = np.array_equal(blind.any(axis=0), blind.all(axis=0))
    return f"{MARK} fully masked" + ("" if is_everywhere else " in some of them")


def titled(what: str, label: int | str) -> str:
    """Return the title of a layer or a head: `head 3`, `mean of heads`, `rollout`."""
    if isinstance(label, int):
        return f"{what} {label}"
    return label if label == "rollout" else f"{label} of {what}s"


# --- numbers in columns ------------------------------------------------------------------------------------

DIGITS = 4  # after the point, as torch prints them
GAP = 3
_COLUMN_LABEL = 8  # cells a column's label may take beyond what its numbers need
WIDEST_FIXED = 100_000  # beyond it fixed decimals cost more columns than they tell


class Matrix(NamedTuple):
    """A matrix to print."""

    title: str
    values: Float[np.ndarray, "R C"]
    rows: Axis
    columns: Axis
    allowed: Bool[np.ndarray, "R C"] | None = None  # which cells count; None is all of them
    hide_masked: bool = False  # print the mask's mark instead of a masked number
    scale: Scale | None = None  # of its colours; None is no colour

    @property
    def is_large(self) -> bool:
        """Whether its numbers are too large for fixed decimals."""
        return bool((np.abs(self.values[np.isfinite(self.values)]) >= WIDEST_FIXED).any())

    def bodies(self, palette: Palette, width: int | None, digits: int) -> list[Block]:
        """Return the matrix without its row labels, in as many pieces as `width` cells take; None is one."""
        title = [Segment(" "), Segment(self.title, BOLD)]
        if not len(self.columns):
            return [block([title, [Segment(" no numbers", DIM)]])]
        is_large, is_colored = self.is_large, self.scale is not None and palette.has_color
        texts = [[number_text(value, digits, is_large) for value in row] for row in self.values.tolist()]
        longest = max(len(text) for row in texts for text in row)
        labels = [shortened(label, max(longest, _COLUMN_LABEL)) for label in self.columns.labels]
        each, count = max(longest, *map(cell_len, labels)), len(self.columns)
        step = count if width is None else max(width // (each + 1), 1)
        allowed = np.ones(self.values.shape, bool) if self.allowed is None else self.allowed
        styles: list[list[Style | None]] = [[None if ok else DIM for ok in row] for row in allowed.tolist()]
        if is_colored and self.scale is not None:
            drawn = palette.cells(self.values, allowed, self.scale, 1)
            styles = [[style for _, style in row] for row in drawn]
        pieces = []
        for start in range(0, count, step):
            columns = range(start, min(start + step, count))
            names = (padded(labels[place], each, DIM) for place in columns)
            lines = [title, [segment for name in names for segment in (Segment(" "), name)]]
            for row, numbers in enumerate(texts):
                line = []
                for place in columns:
                    text = "·" if self.hide_masked and not allowed[row, place] else numbers[place]
                    line += [Segment(" "), padded(text, each, styles[row][place])]
                lines.append(line)
            pieces.append(block(lines))
        return pieces


def side_by_side(matrices: Sequence[Matrix], palette: Palette, width: int | None, precision: int | None) -> Block:
    """Return matrices next to each other as far as the width allows; neighbours of the same rows share labels."""
    room, digits = width or COMFORTABLE, DIGITS if precision is None else precision
    lines: list[list[Block]] = []
    used, rows = 0, None
    for matrix in matrices:
        labels = matrix.rows.row_labels(2)
        for body in matrix.bodies(palette, None if width is None else max(width - labels.width, 1), digits):
            added = [body] if matrix.rows == rows else [labels, body]
            if not lines or used + sum(part.width for part in added) + GAP > room:
                lines.append([])
                used, added = 0, [labels, body]
            elif lines[-1]:
                lines[-1].append(Block([], GAP))
                used += GAP
            lines[-1] += added
            used += sum(part.width for part in added)
            rows = matrix.rows
    return stack((hstack(line, 0) for line in lines), gap=1)


def number_text(value: float, digits: int, is_large: bool | None = None, sign: str = "") -> str:
    """Return a number with `digits` decimals, or significant digits where it, or one of its neighbours, is large.

    Maps, lists and tables write all numbers so; with the sign `+` changes that are not negative have one too.
    """
    if not np.isfinite(value):
        return str(value)
    if value == 0:
        return "0"  # exactly; 0.0000 is a small number rounded
    if is_large is None:
        is_large = abs(value) >= WIDEST_FIXED
    return f"{value:{sign}.{max(digits, 1)}g}" if is_large else f"{value:{sign}z#.{digits}f}"


# --- cells of a map in lines, with a cursor on one of them if there is one ---------------------------------


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
        """The rows that each line shows."""
        rows, each = range(len(self.rows)), self.cell.rows
        return [rows[start : start + each] for start in rows[::each] for _ in range(self.cell.lines)]

    @property
    def width(self) -> int:
        """How many cells of a line it takes."""
        return len(self.columns) * self.cell.columns


def map_lines(
    values: Float[np.ndarray, "Q K"],
    allowed: Bool[np.ndarray, "Q K"],
    lattice: CellGrid,
    palette: Palette,
    scale: Scale,
    cursor: tuple[int, int] | None = None,
    blank: str | None = None,
    digits: int = 2,
) -> list[list[Segment]]:
    """Return the cells of a map in lines.

    A cell is masked where it is not `allowed`, and has `blank` there instead of the mark, if that is given. The cell
    under the `cursor`, a row and a column, is marked in a way that needs no colour.
    """
    cell, lines = lattice.cell, list[list[Segment]]()
    drawn, below = _cells(values, allowed, palette, scale, cell, digits)
    if blank is not None and cell.rows == 1:
        for row, column in np.argwhere(~allowed).tolist():
            drawn[row][column] = (cell.aligned(blank), DIM)
    if cursor is not None:
        own = tuple(slice(place, place + 1) for place in cursor)
        style = palette.cells(values[own], allowed[own], scale, 1)[0][0][1] if allowed[cursor] else None
        line = drawn[cursor[0] // cell.rows]
        glyph = line[cursor[1]][0].strip()
        marked = f"▸{glyph}" if cell.has_number else f"[{' ' * (cell.columns - 2)}]"
        glyph = "◆" if cell.columns == 1 else marked
        line[cursor[1]] = (cell.aligned(glyph), BOLD if style is None else style + BOLD)
    for number, line in enumerate(drawn):
        around = [_segments(below[number])] * (cell.lines - 1) if cell.lines > 1 else []
        middle = (cell.lines - 1) // 2
        lines += [*around[:middle], _segments(line), *around[middle:]]
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


def _segments(line: Line) -> list[Segment]:
    """Return a line's cells, neighbours of one style as one segment."""
    runs = [list(run) for _, run in groupby(line, key=lambda cell: id(cell[1]))]  # comparing styles costs more
    return [Segment("".join([glyph for glyph, _ in run]), run[0][1]) for run in runs]
