"""Matrices in digits: no number is ever split, and columns that do not fit into a line go on below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from attncli.render.axes import Axis
from attncli.render.block import COMFORTABLE, Block, block, cell, hstack, stack
from attncli.render.palette import BOLD, DIM, Palette, Scale

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

DIGITS = 4  # after the point, as torch prints them
GAP = 3
_COLUMN_LABEL = 8  # cells a column's label may take beyond what its numbers need
WIDEST_FIXED = 100_000  # beyond it fixed decimals cost more columns than they tell


class Matrix(NamedTuple):
    """A matrix to print.

    Attributes:
        title: what it is.
        values: `[rows, columns]`.
        rows: the row axis.
        columns: the column axis.
        allowed: which cells count; None is all of them.
        hide_masked: print the mask's mark instead of a masked number.
        scale: of its colours; None is no colour.
    """

    title: str
    values: Float[np.ndarray, "R C"]
    rows: Axis
    columns: Axis
    allowed: Bool[np.ndarray, "R C"] | None = None
    hide_masked: bool = False
    scale: Scale | None = None

    def column_width(self, palette: Palette, digits: int) -> int:
        """Return how many cells a column takes, its gap left out."""
        finite = self.values[np.isfinite(self.values)]
        # With fixed decimals the longest number is the smallest or the largest one.
        candidates = finite.tolist() if self.is_large else [finite.min(), finite.max()] if finite.size else []
        longest = max((len(number_text(value, digits, self.is_large)) for value in candidates), default=1)
        if finite.size < self.values.size:
            longest = max(longest, len("-inf"))
        labels = (cell_len(palette.shortened(label, max(longest, _COLUMN_LABEL))) for label in self.columns.labels)
        return max(longest, *labels, 1)

    def bodies(self, palette: Palette, width: int | None, digits: int) -> list[Block]:
        """Return the matrix without its row labels, in as many pieces as `width` cells take; None is one."""
        if not len(self.columns):
            return [block([self._title(palette), [Segment(" no numbers", DIM)]])]
        each = self.column_width(palette, digits) + 1
        step = len(self.columns) if width is None else max(width // each, 1)
        starts = range(0, len(self.columns), step)
        return [self._piece(range(start, min(start + step, len(self.columns))), palette, digits) for start in starts]

    def _title(self, palette: Palette) -> list[Segment]:
        return [Segment(" "), Segment(palette.fit(self.title), BOLD)]

    def _piece(self, shown: range, palette: Palette, digits: int) -> Block:
        """Return some of the columns."""
        columns = slice(shown.start, shown.stop)
        values = self.values[:, columns]
        allowed = np.ones(values.shape, bool) if self.allowed is None else self.allowed[:, columns]
        texts = [[number_text(value, digits, self.is_large) for value in row] for row in values.tolist()]
        if self.hide_masked:
            mark = palette.fit("·")
            texts = [
                [text if ok else mark for text, ok in zip(row, oks, strict=True)]
                for row, oks in zip(texts, allowed.tolist(), strict=True)
            ]
        column_width = self.column_width(palette, digits)
        names = [palette.shortened(label, column_width) for label in self.columns.labels[columns]]
        lines = [self._title(palette), self._line(shown, column_width, names, [DIM] * len(names), "")]
        bar = palette.fit("│")
        for row, (line_texts, line_styles) in enumerate(
            zip(texts, self._styles(palette, allowed, values), strict=True)
        ):
            if self.rows.boundary and row == self.rows.boundary:
                lines.append([Segment(palette.fit("─") * ((column_width + 1) * len(shown)), DIM)])
            lines.append(self._line(shown, column_width, line_texts, line_styles, bar))
        return block(lines)

    @property
    def is_large(self) -> bool:
        """Whether its numbers are too large for fixed decimals."""
        finite = self.values[np.isfinite(self.values)]
        return bool(finite.size) and float(np.abs(finite).max()) >= WIDEST_FIXED

    def _line(
        self, shown: range, width: int, texts: Sequence[str], styles: Sequence[Style | None], bar: str
    ) -> list[Segment]:
        """Return one line of cells; where a second text begins stands a bar."""
        line = []
        for column, text, style in zip(shown, texts, styles, strict=True):
            is_boundary = column == self.columns.boundary > 0
            line += [Segment(bar if is_boundary and bar else " ", DIM), cell(text, width, style)]
        return line

    def _styles(
        self, palette: Palette, allowed: Bool[np.ndarray, "R C"], values: Float[np.ndarray, "R C"]
    ) -> list[list[Style | None]]:
        if self.scale is not None and palette.has_color:
            return [[style for _, style in row] for row in palette.cells(values, allowed, self.scale, 1)]
        return [[None if ok else DIM for ok in row] for row in allowed.tolist()]


def side_by_side(matrices: Sequence[Matrix], palette: Palette, width: int | None, precision: int | None) -> Block:
    """Return matrices next to each other as far as the width allows; neighbours of the same rows share labels.

    Without a precision numbers have as many digits, 4 to 2, as let all stand in one line.
    """
    if precision is None:
        precision = _most_digits(matrices, palette, width or COMFORTABLE)
    return _placed(matrices, palette, width, precision)


def _most_digits(matrices: Sequence[Matrix], palette: Palette, width: int) -> int:
    """Return the most digits with which all stand in one line, or else in the fewest pieces."""
    if len(matrices[0].rows) == 1:
        return DIGITS
    labels = matrices[0].rows.row_labels(2, palette).width

    def needed(digits: int) -> int:
        columns = sum(len(matrix.columns) * (matrix.column_width(palette, digits) + 1) for matrix in matrices)
        return labels + columns + GAP * (len(matrices) - 1)

    def pieces(digits: int) -> int:
        room = max(width - labels, 1)
        return sum(-(-len(m.columns) // max(room // (m.column_width(palette, digits) + 1), 1)) for m in matrices)

    choices = range(DIGITS, 1, -1)
    return next((digits for digits in choices if needed(digits) <= width), min(choices, key=pieces))


def _placed(matrices: Sequence[Matrix], palette: Palette, width: int | None, digits: int) -> Block:
    """Return the matrices in lines, the labels of their rows at the left of each."""
    room = width or COMFORTABLE
    lines: list[list[Block]] = []
    used = 0
    rows: Axis | None = None
    for matrix in matrices:
        labels = matrix.rows.row_labels(2, palette)
        for body in matrix.bodies(palette, None if width is None else max(width - labels.width, 1), digits):
            added = [body] if matrix.rows == rows else [labels, body]
            if not lines or used + sum(part.width for part in added) + GAP > room:
                lines.append([])
                used = 0
                added = [labels, body]
            elif lines[-1]:
                lines[-1].append(Block([], GAP))
                used += GAP
            lines[-1] += added
            used += sum(part.width for part in added)
            rows = matrix.rows
    return stack((hstack(line, 0) for line in lines), gap=1)


def number_text(value: float, digits: int, is_large: bool | None = None) -> str:
    """Return a number with so many decimals, or significant digits where it is large.

    Whether it is large is said of all that stand together; None is where it stands for itself.
    """
    if not np.isfinite(value):
        return str(value)
    if value == 0:
        return "0"  # exactly; 0.0000 is a small number rounded
    if is_large is None:
        is_large = abs(value) >= WIDEST_FIXED
    return f"{value:.{max(digits, 1)}g}" if is_large else f"{value:#.{digits}f}"
