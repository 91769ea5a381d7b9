"""Matrices in digits: no number is ever split, and columns that do not fit are left out and counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from attncli.render.axes import Axis
from attncli.render.block import Block, beside, block, cell, stack
from attncli.render.palette import BOLD, DIM, Palette

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

DIGITS = 4  # after the point, as torch prints them
GAP = 3
_COLUMN_LABEL = 8  # cells a column's label may take beyond what its numbers need
_WIDEST_FIXED = 100_000  # beyond it fixed decimals cost more columns than they tell


@dataclass(frozen=True)
class Matrix:
    """A matrix to print.

    Attributes:
        title: what it is.
        values: `[rows, columns]`.
        rows: the row axis.
        columns: the column axis.
        allowed: which cells count; None is all of them.
        hide_masked: print the mask's mark instead of a masked number.
        highest: the value of the highest colour, 0 being the lowest; None is no colour.
        what: what a column is called when some are left out.
    """

    title: str
    values: Float[np.ndarray, "R C"]
    rows: Axis
    columns: Axis
    allowed: Bool[np.ndarray, "R C"] | None = None
    hide_masked: bool = False
    highest: float | None = None
    what: str = "key"

    def body(self, palette: Palette, width: int | None, digits: int) -> Block:
        """Return the matrix without its row labels, in at most `width` cells; None is as wide as it needs."""
        allowed = np.ones(self.values.shape, bool) if self.allowed is None else self.allowed
        texts = [[_number(value, digits, self._is_large) for value in row] for row in self.values.tolist()]
        if self.hide_masked:
            mark = palette.fit("·")
            texts = [
                [text if ok else mark for text, ok in zip(row, oks, strict=True)]
                for row, oks in zip(texts, allowed.tolist(), strict=True)
            ]
        if not len(self.columns):
            return block([[Segment(" "), Segment(palette.fit(self.title), BOLD)], [Segment("no numbers", DIM)]])
        column_width = max(len(text) for row in texts for text in row)
        names = [palette.shortened(label, max(column_width, _COLUMN_LABEL)) for label in self.columns.labels]
        column_width = max(column_width, *map(cell_len, names))
        kept = _kept(len(self.columns), column_width + 1, width)
        styles = self._styles(palette, allowed)
        lines = [[Segment(" "), Segment(palette.fit(self.title), BOLD)], _header(names, kept, column_width, palette)]
        for row, line_texts in enumerate(texts):
            if self.rows.boundary and row == self.rows.boundary:
                lines.append([Segment(palette.fit("─") * ((column_width + 1) * len(kept)), DIM)])
            lines.append(self._line(kept, column_width, line_texts, styles[row], palette))
        return self._with_note(block(lines), kept, palette)

    def _line(
        self,
        kept: list[int | None],
        width: int,
        texts: list[str],
        styles: list[Style | None],
        palette: Palette,
    ) -> list[Segment]:
        line = []
        for column in kept:
            if column is None:
                line.append(Segment(" " + palette.fit("⋯"), DIM))
                continue
            is_boundary = self.columns.boundary and column == self.columns.boundary
            line.append(Segment(palette.fit("│") if is_boundary else " ", DIM))
            line.append(cell(texts[column], width, styles[column]))
        return line

    def _with_note(self, body: Block, kept: list[int | None], palette: Palette) -> Block:
        """Return the body with a line that says which columns were left out, if any were."""
        if None not in kept:
            return body
        first = kept.index(None)
        last = len(self.columns) - (len(kept) - first)
        ends = self.columns.indices[first], self.columns.indices[last]
        gone = (
            f"{self.what} {ends[0]} does not fit" if first == last else f"{self.what}s {ends[0]}..{ends[1]} do not fit"
        )
        note = [Segment(palette.fit(" " + gone), DIM)]
        return Block([*body.lines, note], max(body.width, len(gone) + 1))

    @property
    def _is_large(self) -> bool:
        finite = self.values[np.isfinite(self.values)]
        return bool(finite.size) and float(np.abs(finite).max()) >= _WIDEST_FIXED

    def _styles(self, palette: Palette, allowed: np.ndarray[Any, Any]) -> list[list[Style | None]]:
        if self.highest is not None and palette.has_color:
            drawn = palette.cells(self.values, allowed, 0.0, self.highest, 1)
            return [[style for _, style in row] for row in drawn]
        return [[None if ok else DIM for ok in row] for row in allowed.tolist()]


def side_by_side(
    matrices: Sequence[Matrix], palette: Palette, width: int, is_cut: bool, precision: int | None
) -> Block:
    """Return matrices next to each other as far as the width allows; neighbours of the same rows share labels.

    Args:
        matrices: at least one.
        palette: how cells look.
        width: cells in a line.
        is_cut: whether columns of a matrix that is wider than a line are left out.
        precision: digits after the point; None is as many, 4 to 2, as let all of them stand in one line.
    """
    if precision is None:
        choices = (DIGITS,) if len(matrices[0].rows) == 1 else range(DIGITS, 1, -1)
        drawn = [_placed(matrices, palette, width, is_cut, digits) for digits in choices]
        return next((block for block, lines in drawn if lines == 1), drawn[0][0])
    return _placed(matrices, palette, width, is_cut, precision)[0]


def _placed(matrices: Sequence[Matrix], palette: Palette, width: int, is_cut: bool, digits: int) -> tuple[Block, int]:
    """Return the matrices in lines, and how many lines they took."""
    lines: list[list[Block]] = []
    used = 0
    rows: Axis | None = None
    for matrix in matrices:
        labels = matrix.rows.row_labels(2, palette)
        body = matrix.body(palette, max(width - labels.width, 12) if is_cut else None, digits)
        added = [body] if matrix.rows == rows else [labels, body]
        if not lines or used + sum(part.width for part in added) + GAP > width:
            lines.append([])
            used = 0
            added = [labels, body]
        elif lines[-1]:
            lines[-1].append(Block([], GAP))
            used += GAP
        lines[-1] += added
        used += sum(part.width for part in added)
        rows = matrix.rows
    stacked = [part for line in lines for part in (Block([[]], 0), beside(line, 0))][1:]
    return stack(stacked), len(lines)


def _header(names: Sequence[str], kept: list[int | None], column_width: int, palette: Palette) -> list[Segment]:
    skipped = Segment(" " + palette.fit("⋯"), DIM)
    return [skipped if column is None else cell(names[column], column_width + 1, DIM) for column in kept]


def _number(value: float, digits: int, is_large: bool) -> str:
    if not np.isfinite(value):
        return str(value)
    if value == 0:
        return "0"  # exactly; 0.0000 is a small number rounded
    return f"{value:.{max(digits, 1)}g}" if is_large else f"{value:.{digits}f}"


def _kept(count: int, cell_width: int, room: int | None) -> list[int | None]:
    """Return which columns fit, the first and the last ones, with None where the rest is left out."""
    if room is None or count * cell_width <= room:
        return list(range(count))
    fitting = max((room - 2) // cell_width, 1)
    front = -(-fitting // 2)
    return [*range(front), None, *range(count - (fitting - front), count)]
