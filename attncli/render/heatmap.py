"""Heat maps: one small picture per head, on one scale, in strips as wide as the output allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment

from attncli.render.axes import Axis
from attncli.render.block import Block, beside, block, cell, stack
from attncli.render.palette import BOLD, DIM, Palette

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

GAP = 1
_STRIPS = 2  # more strips than this are narrowed to one cell a column


@dataclass(frozen=True)
class Picture:
    """One head's map: values in the cells that are allowed."""

    title: str
    values: Float[np.ndarray, "Q K"]
    allowed: Bool[np.ndarray, "Q K"]

    def pooled(self, rows: int, columns: int) -> Picture:
        """Return the picture in blocks of rows × columns cells, each its largest allowed value.

        A block is masked where all its cells are; NaN wins over every number.
        """
        if rows == columns == 1:
            return self
        padding = [(0, -size % step) for size, step in zip(self.values.shape, (rows, columns), strict=True)]
        values = np.pad(np.where(self.allowed, self.values, -np.inf), padding, constant_values=-np.inf)
        allowed = np.pad(self.allowed, padding)
        blocks = (values.shape[0] // rows, rows, values.shape[1] // columns, columns)
        with np.errstate(invalid="ignore"):
            highest = values.reshape(blocks).max(axis=(1, 3))
        some = np.asarray(allowed.reshape(blocks).any(axis=(1, 3)))
        return Picture(self.title, np.where(some, highest, 0), some)


def value_range(pictures: Sequence[Picture]) -> tuple[float, float]:
    """Return 0 and the largest finite value of the allowed cells: one scale for all the pictures."""
    highest = 0.0
    for picture in pictures:
        shown = picture.values[picture.allowed]
        shown = shown[np.isfinite(shown)]
        highest = max(highest, float(shown.max(initial=0.0)))
    return 0.0, highest


def heatmaps(
    pictures: Sequence[Picture], rows: Axis, columns: Axis, palette: Palette, width: int, most: int
) -> tuple[Block, tuple[int, int]]:
    """Return the pictures in strips, each strip with the row labels at its left.

    Args:
        pictures: all of one shape.
        rows: the query axis.
        columns: the key axis.
        palette: how cells look.
        width: how many cells a strip may take.
        most: rows and columns of a picture at the most; a larger one is pooled.

    Returns:
        The block, and how many rows and columns were pooled into one cell, `(1, 1)` where none were.
    """
    low, high = value_range(pictures)
    labels_width = rows.row_labels(0, palette).width
    room = max(width - labels_width - GAP - (1 if columns.boundary else 0), 4)
    pool = (-(-len(rows) // most), max(-(-len(columns) // most), -(-len(columns) // room)))
    row_axis = _pooled_axis(rows, pool[0])
    column_axis = _pooled_axis(columns, pool[1])
    panels = _panels([picture.pooled(*pool) for picture in pictures], row_axis, column_axis, palette, 2, (low, high))
    per_strip = max(1, (width - labels_width) // (panels[0].width + GAP))
    if panels[0].width > room or len(panels) > per_strip * _STRIPS:
        panels = _panels(
            [picture.pooled(*pool) for picture in pictures], row_axis, column_axis, palette, 1, (low, high)
        )
        per_strip = max(1, (width - labels_width) // (panels[0].width + GAP))
    labels = row_axis.row_labels(2, palette)
    strips = [beside([labels, *panels[start : start + per_strip]], GAP) for start in range(0, len(panels), per_strip)]
    return stack([part for strip in strips for part in (strip, Block([[]], 0))][:-1]), pool


def legend(pictures: Sequence[Picture], palette: Palette) -> Block:
    """Return the scale of the pictures, and the marks that occur in them."""
    low, high = value_range(pictures)
    ramp = palette.ramp(2)
    shown = [ramp[round(step * (len(ramp) - 1) / 8)] for step in range(9)] if palette.has_color else ramp
    line = [Segment(f"{low:g} ", DIM)]
    line += [Segment(glyph, style) for glyph, style in shown]
    line.append(Segment(f" {high:.4g}", DIM))
    values = np.stack([picture.values for picture in pictures])
    allowed = np.stack([picture.allowed for picture in pictures])
    marks = {
        palette.fit("·") + " masked": ~allowed,
        "0 exactly zero": allowed & (values == 0),
        "X NaN": allowed & np.isnan(values),
        "I infinite": allowed & np.isinf(values),
    }
    line += [Segment(f"   {mark}", DIM) for mark, where in marks.items() if where.any()]
    return block([line])


def _pooled_axis(axis: Axis, step: int) -> Axis:
    if step == 1:
        return axis
    return axis.only(range(0, len(axis), step))


def _panels(
    pictures: Sequence[Picture],
    rows: Axis,
    columns: Axis,
    palette: Palette,
    cell_width: int,
    ends: tuple[float, float],
) -> list[Block]:
    """Return a block for each picture, all of one width."""
    width = max(len(columns) * cell_width + (1 if columns.boundary else 0), *(cell_len(p.title) for p in pictures))
    return [Block(_panel(picture, rows, columns, palette, cell_width, ends), width) for picture in pictures]


def _panel(
    picture: Picture, rows: Axis, columns: Axis, palette: Palette, cell_width: int, ends: tuple[float, float]
) -> list[list[Segment]]:
    drawn = palette.cells(picture.values, picture.allowed, *ends, cell_width)
    lines = [[Segment(palette.fit(picture.title), BOLD)], columns.ticks(cell_width, palette)]
    for place, row in enumerate(drawn):
        if rows.boundary and place == rows.boundary:
            line = palette.fit("─") * (len(columns) * cell_width)
            lines.append([Segment(_crossed(line, columns.boundary * cell_width, palette), DIM)])
        segments = [cell(glyph, cell_width, style) for glyph, style in row]
        if columns.boundary:
            segments.insert(columns.boundary, Segment(palette.fit("│"), DIM))
        lines.append(segments)
    return lines


def _crossed(line: str, boundary: int, palette: Palette) -> str:
    return line[:boundary] + palette.fit("┼") + line[boundary:] if boundary else line
