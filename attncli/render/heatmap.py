"""Heat maps: one small picture a head, in strips as wide as the output allows."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment

from attncli.render.axes import Axis, titled
from attncli.render.block import Block, hstack, stack
from attncli.render.cell_grid import NARROW, WIDE, CellGrid, GridCell, map_lines
from attncli.render.palette import BOLD, Palette, Scale
from attncli.trace.top_keys import drawn_cells

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from attncli.trace.layer import HeadTrace
    from attncli.trace.view import Columns

GAP = 1
MOST = 64  # rows and columns of a picture; more are pooled
_STRIPS = 2  # more strips than this are narrowed to one cell a column
_HEADER = 2  # lines of a map: its title and its ticks
_MARKS = ("· masked", "0 exactly zero", "X NaN", "I infinite")


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
        (marks,) = marks_of(values[None], allowed[None])
        return cls(float(values.max(initial=0.0, where=allowed & np.isfinite(values))), marks)

    def __or__(self, other: Extent) -> Extent:
        return Extent(max(self.highest, other.highest), self.marks | other.marks)

    @property
    def mark_notes(self) -> list[str]:
        """What the marks mean."""
        return [mark for mark in _MARKS if mark in self.marks]


def marks_of(values: Float[np.ndarray, "H Q K"], allowed: Bool[np.ndarray, "H Q K"]) -> list[frozenset[str]]:
    """Return which odd cells each head has, of those that have a mark of their own."""
    odd = (~allowed, allowed & (values == 0), allowed & np.isnan(values), allowed & np.isinf(values))
    found = np.stack([each.any(axis=(1, 2)) for each in odd], axis=1).tolist()
    return [frozenset(mark for mark, is_found in zip(_MARKS, own, strict=True) if is_found) for own in found]


def in_blocks(
    values: Float[np.ndarray, "*H Q K"],
    allowed: Bool[np.ndarray, "*H Q K"],
    rows: int,
    columns: int,
    is_signed: bool = False,
) -> tuple[Float[np.ndarray, "*H R C"], Bool[np.ndarray, "*H R C"]]:
    """Return the largest allowed value of blocks of rows × columns cells, and whether there is one.

    NaN wins over every number.

    Args:
        values: the cells.
        allowed: those that count.
        rows: how many of them each block has; the last one has what is left.
        columns: likewise.
        is_signed: whether the value farthest from zero is taken.
    """
    if rows == columns == 1:
        return values, allowed
    if is_signed:
        highest, some = in_blocks(values, allowed, rows, columns)
        lowest, _ = in_blocks(-values, allowed, rows, columns)
        return np.where(highest >= lowest, highest, -lowest), some
    found, some = np.where(allowed, values, -np.inf), allowed
    for axis, step in ((-2, rows), (-1, columns)):
        found, some = _every(np.maximum, found, step, axis), _every(np.logical_or, some, step, axis)
    return np.where(some, found, 0), some


def _every(joined: np.ufunc, cells: np.ndarray[Any, Any], step: int, axis: int) -> np.ndarray[Any, Any]:
    """Return what so many cells in a row make together; a reduction over short rows takes several times as long."""
    along = np.moveaxis(cells, axis, 0)
    found = along[::step].copy(order="K")
    with np.errstate(invalid="ignore"):
        for place in range(1, step):
            part = along[place::step]
            joined(found[: len(part)], part, out=found[: len(part)])
    return np.moveaxis(found, 0, axis)


class Heatmap(NamedTuple):
    """One head's map: values in the cells that are allowed, and the extent of all that were pooled into them."""

    title: str
    values: Float[np.ndarray, "Q K"]
    allowed: Bool[np.ndarray, "Q K"]
    extent: Extent = Extent()

    def pooled(self, rows: int, columns: int) -> Heatmap:
        """Return the picture in blocks of rows × columns cells, each its largest allowed value.

        A block is masked where all its cells are; NaN wins over every number.
        """
        return Heatmap(self.title, *in_blocks(self.values, self.allowed, rows, columns), self.extent)

    def strongest(self, rows: int, columns: int) -> Heatmap:
        """Return the picture in blocks of rows × columns cells, each its value farthest from zero."""
        return Heatmap(self.title, *in_blocks(self.values, self.allowed, rows, columns, is_signed=True), self.extent)


def heatmap_of(head: HeadTrace, columns: Columns, pool: tuple[int, int]) -> Heatmap:
    """Return the weights of a head as a picture; its rows are pooled as they are derived, and only that is kept.

    Args:
        head: the head, for the rows shown.
        columns: the keys shown.
        pool: how many rows and columns a cell of the picture stands for.
    """
    blocks = []
    for part in head.blocks():
        weights, allowed = part.weights[:, columns], drawn_cells(part)[:, columns]
        blocks.append(Heatmap("", weights, allowed, Extent.of(weights, allowed)).pooled(1, pool[1]))
    return joined(titled("head", head.layer.head_label(head.head)), blocks).pooled(pool[0], 1)


def joined(title: str, parts: Sequence[Heatmap]) -> Heatmap:
    """Return the picture whose rows are those of its parts, one after the other."""
    values = np.concatenate([part.values for part in parts])
    allowed = np.concatenate([part.allowed for part in parts])
    return Heatmap(title, values, allowed, extent_of(parts))


def extent_of(pictures: Sequence[Heatmap]) -> Extent:
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


def size_of(cell: GridCell, titles: int, rows: Axis, columns: Axis) -> tuple[int, int]:
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
    pictures: Sequence[Heatmap], rows: Axis, columns: Axis, pool: tuple[int, int], width: int, small: GridCell = NARROW
) -> GridCell:
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
    pictures: Sequence[Heatmap],
    rows: Axis,
    columns: Axis,
    pool: tuple[int, int],
    palette: Palette,
    width: int,
    scales: Sequence[Scale],
    cell: GridCell | None = None,
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
    lattice = CellGrid(row_axis, column_axis, cell)
    drawn = (_panel(picture, lattice, palette, scale) for picture, scale in zip(pictures, scales, strict=True))
    panels = [Block(lines, panel_width) for lines in drawn]
    labels = (row_axis if cell.rows == 1 else row_axis.paired()).row_labels(_HEADER, palette)
    strips = [hstack([labels, *panels[start : start + per_strip]], GAP) for start in range(0, len(panels), per_strip)]
    return stack(strips, gap=1)


def _room(rows: Axis, columns: Axis, width: int) -> int:
    """Return how many cells a strip has for pictures."""
    return max(width - rows.width - GAP - (1 if columns.boundary else 0), 4)


def _panel(picture: Heatmap, lattice: CellGrid, palette: Palette, scale: Scale) -> list[list[Segment]]:
    ticks = lattice.columns.ticks(lattice.cell.columns, palette)
    return [
        [Segment(palette.fit(picture.title), BOLD)],
        ticks,
        *map_lines(picture.values, picture.allowed, lattice, palette, scale),
    ]
