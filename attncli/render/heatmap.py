"""Heat maps: one small picture a head, in strips as wide as the output allows."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from attncli.render.axes import Axis, titled
from attncli.render.block import Block, beside, stack
from attncli.render.palette import BOLD, DIM, Palette, Scale
from attncli.trace.ranking import drawn_cells

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from attncli.trace.layer import HeadTrace
    from attncli.trace.view import Columns

GAP = 1
MOST = 64  # rows and columns of a picture; more are pooled
COMFORTABLE = 100  # cells in a line where the output sets no width
_STRIPS = 2  # more strips than this are narrowed to one cell a column
_HEADER = 2  # lines of a map: its title and its ticks
_MARKS = ("· masked", "0 exactly zero", "X NaN", "I infinite")


class Cell(NamedTuple):
    """How large a cell of a map is drawn.

    Attributes:
        columns: characters that it is wide.
        rows: how many of them share a line, one above the other.
    """

    columns: int
    rows: int


WIDE, NARROW, HALF = Cell(2, 1), Cell(1, 1), Cell(1, 2)


class Extent(NamedTuple):
    """What all the cells behind a picture are like, pooled or not.

    Attributes:
        highest: the largest finite value of the allowed cells, or 0; of differences the largest size.
        marks: which of the odd cells that have a mark of their own there are.
    """

    highest: float = 0.0
    marks: frozenset[str] = frozenset()

    @classmethod
    def of(cls, values: Float[np.ndarray, "Q K"], allowed: Bool[np.ndarray, "Q K"]) -> Extent:
        """Return the extent of these cells."""
        finite = np.isfinite(values)
        found = (
            not allowed.all(),
            (allowed & (values == 0)).any(),
            (allowed & np.isnan(values)).any(),
            (allowed & np.isinf(values)).any(),
        )
        marks = frozenset(mark for mark, is_found in zip(_MARKS, found, strict=True) if is_found)
        return cls(float(values.max(initial=0.0, where=allowed & finite)), marks)

    def __or__(self, other: Extent) -> Extent:
        return Extent(max(self.highest, other.highest), self.marks | other.marks)

    @property
    def said(self) -> list[str]:
        """What the marks mean."""
        return [mark for mark in _MARKS if mark in self.marks]


class Picture(NamedTuple):
    """One head's map: values in the cells that are allowed, and the extent of all that were pooled into them."""

    title: str
    values: Float[np.ndarray, "Q K"]
    allowed: Bool[np.ndarray, "Q K"]
    extent: Extent = Extent()

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
        return Picture(self.title, np.where(some, highest, 0), some, self.extent)

    def strongest(self, rows: int, columns: int) -> Picture:
        """Return the picture in blocks of rows × columns cells, each its value farthest from zero."""
        highest = self.pooled(rows, columns)
        lowest = self._replace(values=-self.values).pooled(rows, columns)
        return highest._replace(values=np.where(highest.values >= lowest.values, highest.values, -lowest.values))


def picture_of(head: HeadTrace, columns: Columns, pool: tuple[int, int]) -> Picture:
    """Return the weights of a head as a picture; its rows are pooled as they are derived, and only that is kept.

    Args:
        head: the head, for the rows shown.
        columns: the keys shown.
        pool: how many rows and columns a cell of the picture stands for.
    """
    kept = []
    for part in head.blocks():
        weights, allowed = part.weights[:, columns], drawn_cells(part)[:, columns]
        kept.append(Picture("", weights, allowed, Extent.of(weights, allowed)).pooled(1, pool[1]))
    return joined(titled("head", head.layer.head_label(head.head)), kept).pooled(pool[0], 1)


def joined(title: str, parts: Sequence[Picture]) -> Picture:
    """Return the picture whose rows are those of its parts, one after the other."""
    values = np.concatenate([part.values for part in parts])
    allowed = np.concatenate([part.allowed for part in parts])
    return Picture(title, values, allowed, extent_of(parts))


def extent_of(pictures: Sequence[Picture]) -> Extent:
    """Return the extent of all the pictures together."""
    return reduce(operator.or_, (picture.extent for picture in pictures), Extent())


def pooling(rows: Axis, columns: Axis, width: int) -> tuple[int, int]:
    """Return how many rows and columns are pooled into one cell of a picture, `(1, 1)` where none are.

    Args:
        rows: the query axis.
        columns: the key axis.
        width: how many cells a strip may take.
    """
    room = _room(rows, columns, width)
    return -(-len(rows) // MOST), max(-(-len(columns) // MOST), -(-len(columns) // room))


def size_of(cell: Cell, titles: int, rows: Axis, columns: Axis) -> tuple[int, int]:
    """Return how many lines and cells a map takes, its title and ticks among them, without the labels of its rows.

    Args:
        cell: how large its cells are.
        titles: cells of the longest title.
        rows: its row axis, pooled.
        columns: its column axis, pooled.
    """
    lines = rows if cell.rows == 1 else rows.paired()
    high = _HEADER + len(lines) + bool(lines.boundary)
    return high, max(len(columns) * cell.columns + bool(columns.boundary), titles)


def cell_of(
    pictures: Sequence[Picture], rows: Axis, columns: Axis, pool: tuple[int, int], width: int, small: Cell = NARROW
) -> Cell:
    """Return how large a cell of the pictures is drawn: wide, or small where that takes too many strips.

    Args:
        pictures: all of one shape.
        rows: the query axis, before pooling.
        columns: the key axis, before pooling.
        pool: how many rows and columns of them each cell of the pictures stands for.
        width: how many cells a strip may take.
        small: the small one.
    """
    titles = max(cell_len(picture.title) for picture in pictures)
    _, panel_width = size_of(WIDE, titles, rows.pooled(pool[0]), columns.pooled(pool[1]))
    per_strip = (width - rows.width) // (panel_width + GAP)
    is_too_wide = panel_width > _room(rows, columns, width)
    return small if is_too_wide or len(pictures) > per_strip * _STRIPS else WIDE


def heatmaps(
    pictures: Sequence[Picture],
    rows: Axis,
    columns: Axis,
    pool: tuple[int, int],
    palette: Palette,
    width: int,
    scales: Sequence[Scale],
    cell: Cell | None = None,
) -> Block:
    """Return the pictures in strips, each strip with the row labels at its left.

    Args:
        pictures: all of one shape.
        rows: the query axis, before pooling.
        columns: the key axis, before pooling.
        pool: how many rows and columns of them each cell of the pictures stands for.
        palette: how cells look.
        width: how many cells a strip may take.
        scales: of the colours of each.
        cell: how large each is drawn; None is as `cell_of` says.
    """
    row_axis, column_axis = rows.pooled(pool[0]), columns.pooled(pool[1])
    if cell is None:
        cell = cell_of(pictures, rows, columns, pool, width)
    _, panel_width = size_of(cell, max(cell_len(picture.title) for picture in pictures), row_axis, column_axis)
    per_strip = max((width - rows.width) // (panel_width + GAP), 1)
    drawn = (
        _panel(picture, row_axis, column_axis, palette, cell, scale)
        for picture, scale in zip(pictures, scales, strict=True)
    )
    panels = [Block(lines, panel_width) for lines in drawn]
    labels = (row_axis if cell.rows == 1 else row_axis.paired()).row_labels(_HEADER, palette)
    strips = [beside([labels, *panels[start : start + per_strip]], GAP) for start in range(0, len(panels), per_strip)]
    return stack(strips, gap=1)


def _room(rows: Axis, columns: Axis, width: int) -> int:
    """Return how many cells a strip has for pictures."""
    return max(width - rows.width - GAP - (1 if columns.boundary else 0), 4)


def _panel(
    picture: Picture, rows: Axis, columns: Axis, palette: Palette, cell: Cell, scale: Scale
) -> list[list[Segment]]:
    lines = [[Segment(palette.fit(picture.title), BOLD)], columns.ticks(cell.columns, palette)]
    for start, stop in ((0, rows.boundary), (rows.boundary, len(rows))):
        if start == stop:
            continue
        if start:
            line = palette.fit("─") * (len(columns) * cell.columns)
            lines.append([Segment(_crossed(line, columns.boundary * cell.columns, palette), DIM)])
        cells = picture.values[start:stop], picture.allowed[start:stop], scale
        for row in palette.cells(*cells, cell.columns) if cell.rows == 1 else palette.halves(*cells):
            segments = _merged(row[: columns.boundary])
            if columns.boundary:
                segments.append(Segment(palette.fit("│"), DIM))
            lines.append(segments + _merged(row[columns.boundary :]))
    return lines


def _merged(row: Sequence[tuple[str, Style | None]]) -> list[Segment]:
    """Return a row's cells, those of one style that stand together as one segment: a map has thousands of cells."""
    runs = [list(run) for _, run in groupby(row, key=lambda cell: id(cell[1]))]  # comparing styles costs more
    return [Segment("".join([glyph for glyph, _ in run]), run[0][1]) for run in runs]


def _crossed(line: str, boundary: int, palette: Palette) -> str:
    return line[:boundary] + palette.fit("┼") + line[boundary:] if boundary else line
