"""Matrices in digits: no number is ever split, and columns that do not fit are left out and counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from attncli.render.axes import Axis
from attncli.render.block import Block, beside, block, cell, stack
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
        what: what a column is called when some are left out.
    """

    title: str
    values: Float[np.ndarray, "R C"]
    rows: Axis
    columns: Axis
    allowed: Bool[np.ndarray, "R C"] | None = None
    hide_masked: bool = False
    scale: Scale | None = None
    what: str = "key"

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

    def columns_kept(self, palette: Palette, width: int | None, digits: int) -> list[int | None]:
        """Return which columns fit into `width` cells, with None where the rest is left out."""
        return _kept(len(self.columns), self.column_width(palette, digits) + 1, width)

    def body(self, palette: Palette, width: int | None, digits: int) -> Block:
        """Return the matrix without its row labels, in at most `width` cells; None is as wide as it needs."""
        title = [Segment(" "), Segment(palette.fit(self.title), BOLD)]
        if not len(self.columns):
            return block([title, [Segment(" no numbers", DIM)]])
        allowed = np.ones(self.values.shape, bool) if self.allowed is None else self.allowed
        kept = self.columns_kept(palette, width, digits)
        shown = [column for column in kept if column is not None]
        large = self.is_large
        texts = [[number_text(value, digits, large) for value in row] for row in self.values[:, shown].tolist()]
        if self.hide_masked:
            mark = palette.fit("·")
            texts = [
                [text if ok else mark for text, ok in zip(row, oks, strict=True)]
                for row, oks in zip(texts, allowed[:, shown].tolist(), strict=True)
            ]
        column_width = self.column_width(palette, digits)
        styles = self._styles(palette, allowed[:, shown], self.values[:, shown])
        names = [palette.shortened(self.columns.labels[column], column_width) for column in shown]
        lines = [title, self._line(kept, column_width, names, [DIM] * len(names), palette, is_header=True)]
        for row, (line_texts, line_styles) in enumerate(zip(texts, styles, strict=True)):
            if self.rows.boundary and row == self.rows.boundary:
                lines.append([Segment(palette.fit("─") * ((column_width + 1) * len(kept)), DIM)])
            lines.append(self._line(kept, column_width, line_texts, line_styles, palette))
        return self._with_note(block(lines), kept, palette)

    @property
    def is_large(self) -> bool:
        """Whether its numbers are too large for fixed decimals."""
        finite = self.values[np.isfinite(self.values)]
        return bool(finite.size) and float(np.abs(finite).max()) >= WIDEST_FIXED

    def _line(
        self,
        kept: list[int | None],
        width: int,
        texts: Sequence[str],
        styles: Sequence[Style | None],
        palette: Palette,
        is_header: bool = False,
    ) -> list[Segment]:
        """Return one line of cells; where a second text begins, or its beginning was left out, stands a bar."""
        line = []
        shown = iter(zip(texts, styles, strict=True))
        previous = -1
        for column in kept:
            if column is None:
                line.append(Segment(" " + palette.fit("⋯"), DIM))
                continue
            is_boundary = previous < self.columns.boundary <= column and self.columns.boundary > 0
            line.append(Segment(palette.fit("│") if is_boundary and not is_header else " ", DIM))
            text, style = next(shown)
            line.append(cell(text, width, style))
            previous = column
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

    def _styles(
        self, palette: Palette, allowed: Bool[np.ndarray, "R C"], values: Float[np.ndarray, "R C"]
    ) -> list[list[Style | None]]:
        if self.scale is not None and palette.has_color:
            return [[style for _, style in row] for row in palette.cells(values, allowed, self.scale, 1)]
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
        precision = _most_digits(matrices, palette, width, is_cut)
    return _placed(matrices, palette, width, is_cut, precision)


def _most_digits(matrices: Sequence[Matrix], palette: Palette, width: int, is_cut: bool) -> int:
    """Return the most digits with which all stand in one line, or else with which the fewest columns are left out."""
    if len(matrices[0].rows) == 1:
        return DIGITS
    labels = matrices[0].rows.row_labels(2, palette).width

    def needed(digits: int) -> int:
        columns = sum(len(matrix.columns) * (matrix.column_width(palette, digits) + 1) for matrix in matrices)
        return labels + columns + GAP * (len(matrices) - 1)

    def left_out(digits: int) -> int:
        room = max(width - labels, 12) if is_cut else None
        return sum(len(m.columns) - sum(c is not None for c in m.columns_kept(palette, room, digits)) for m in matrices)

    choices = range(DIGITS, 1, -1)
    return next((digits for digits in choices if needed(digits) <= width), min(choices, key=left_out))


def _placed(matrices: Sequence[Matrix], palette: Palette, width: int, is_cut: bool, digits: int) -> Block:
    """Return the matrices in lines."""
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
    return stack((beside(line, 0) for line in lines), gap=1)


def number_text(value: float, digits: int, is_large: bool | None = None) -> str:
    """Return a number with so many decimals, or significant digits where it is large.

    Args:
        value: the number.
        digits: how many.
        is_large: whether it or one that stands with it is; None is where it stands for itself.
    """
    if not np.isfinite(value):
        return str(value)
    if value == 0:
        return "0"  # exactly; 0.0000 is a small number rounded
    if is_large is None:
        is_large = abs(value) >= WIDEST_FIXED
    return f"{value:.{max(digits, 1)}g}" if is_large else f"{value:#.{digits}f}"


def _kept(count: int, cell_width: int, room: int | None) -> list[int | None]:
    """Return which columns fit, the first and the last ones, with None where the rest is left out."""
    if room is None or count * cell_width <= room:
        return list(range(count))
    fitting = max((room - 2) // cell_width, 1)
    front = -(-fitting // 2)
    return [*range(front), None, *range(count - (fitting - front), count)]
