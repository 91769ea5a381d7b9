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
        labels = [palette.shortened(label, max(longest, _COLUMN_LABEL)) for label in self.columns.labels]
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
            gaps = [Segment("│" if place == self.columns.boundary > 0 else " ", DIM) for place in columns]
            names = (cell(labels[place], each, DIM) for place in columns)
            lines = [title, [segment for name in names for segment in (Segment(" "), name)]]
            for row, numbers in enumerate(texts):
                if self.rows.boundary and row == self.rows.boundary:
                    lines.append([Segment("─" * ((each + 1) * len(columns)), DIM)])
                line = []
                for gap, place in zip(gaps, columns, strict=True):
                    text = "·" if self.hide_masked and not allowed[row, place] else numbers[place]
                    line += [gap, cell(text, each, styles[row][place])]
                lines.append(line)
            pieces.append(block(lines))
        return pieces


def side_by_side(matrices: Sequence[Matrix], palette: Palette, width: int | None, precision: int | None) -> Block:
    """Return matrices next to each other as far as the width allows; neighbours of the same rows share labels."""
    room, digits = width or COMFORTABLE, DIGITS if precision is None else precision
    lines: list[list[Block]] = []
    used, rows = 0, None
    for matrix in matrices:
        labels = matrix.rows.row_labels(2, palette)
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
