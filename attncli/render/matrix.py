"""Matrices in digits: no number is ever split, and columns that do not fit into a line go on below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment

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

    @property
    def is_large(self) -> bool:
        """Whether its numbers are too large for fixed decimals."""
        return bool((np.abs(self.values[np.isfinite(self.values)]) >= WIDEST_FIXED).any())

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
        title = [Segment(" "), Segment(self.title, BOLD)]
        if not len(self.columns):
            return [block([title, [Segment(" no numbers", DIM)]])]
        each, count = self.column_width(palette, digits), len(self.columns)
        step = count if width is None else max(width // (each + 1), 1)
        mark, bar, is_large = "·", "│", self.is_large
        allowed = np.ones(self.values.shape, bool) if self.allowed is None else self.allowed
        is_colored = self.scale is not None and palette.has_color
        pieces = []
        for columns in (range(start, min(start + step, count)) for start in range(0, count, step)):
            part = slice(columns.start, columns.stop)
            values, counted = self.values[:, part], allowed[:, part]
            if is_colored and self.scale is not None:
                styles = [[style for _, style in row] for row in palette.cells(values, counted, self.scale, 1)]
            else:
                styles = [[None if ok else DIM for ok in row] for row in counted.tolist()]
            gaps = [Segment(bar if place == self.columns.boundary > 0 else " ", DIM) for place in columns]
            names = [cell(palette.shortened(label, each), each, DIM) for label in self.columns.labels[part]]
            lines = [title, [segment for name in names for segment in (Segment(" ", DIM), name)]]
            for row, numbers in enumerate(values.tolist()):
                if self.rows.boundary and row == self.rows.boundary:
                    lines.append([Segment("─" * ((each + 1) * len(columns)), DIM)])
                line = []
                for gap, value, ok, style in zip(gaps, numbers, counted[row].tolist(), styles[row], strict=True):
                    text = mark if self.hide_masked and not ok else number_text(value, digits, is_large)
                    line += [gap, cell(text, each, style)]
                lines.append(line)
            pieces.append(block(lines))
        return pieces


def side_by_side(matrices: Sequence[Matrix], palette: Palette, width: int | None, precision: int | None) -> Block:
    """Return matrices next to each other as far as the width allows; neighbours of the same rows share labels.

    Without a precision numbers have as many digits, 4 to 2, as let all stand in one line.
    """
    room = width or COMFORTABLE
    digits = _most_digits(matrices, palette, room) if precision is None else precision
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


def _most_digits(matrices: Sequence[Matrix], palette: Palette, width: int) -> int:
    """Return the most digits with which all stand in one line, or else in the fewest pieces."""
    if len(matrices[0].rows) == 1:
        return DIGITS
    labels = matrices[0].rows.row_labels(2, palette).width
    room, choices = max(width - labels, 1), range(DIGITS, 1, -1)
    sizes = {digits: [(len(m.columns), m.column_width(palette, digits) + 1) for m in matrices] for digits in choices}
    for digits, own in sizes.items():
        if labels + sum(count * each for count, each in own) + GAP * (len(matrices) - 1) <= width:
            return digits
    return min(choices, key=lambda digits: sum(-(-count // max(room // each, 1)) for count, each in sizes[digits]))


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
    return f"{value:.{max(digits, 1)}g}" if is_large else f"{value:z#.{digits}f}"
