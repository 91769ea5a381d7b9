"""Heat maps: one small picture a head, in strips as wide as the output allows."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from attncli.render.axes import Axis, titled
from attncli.render.block import Block, beside, flowing, stack
from attncli.render.palette import BOLD, DIM, Palette, Scale
from attncli.trace.ranking import drawn_cells

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from attncli.trace.layer import HeadTrace
    from attncli.trace.view import Columns

GAP = 1
MOST = 64  # rows and columns of a picture; more are pooled
COMFORTABLE = 100  # cells in a line where the output sets no width
_WIDEST = 10_000  # ratio of the ends of a logarithmic scale; a softmax has hundreds of powers of ten
STRIPS = 2  # more strips than this are narrowed to one cell a column
_MARKS = ("· masked", "0 exactly zero", "X NaN", "I infinite")


class Extent(NamedTuple):
    """What all the cells behind a picture are like, pooled or not.

    Attributes:
        highest: the largest finite value of the allowed cells, or 0; of differences the largest size.
        marks: which of the odd cells that have a mark of their own there are.
        lowest: the smallest one above 0, or infinity.
    """

    highest: float = 0.0
    marks: frozenset[str] = frozenset()
    lowest: float = np.inf

    @classmethod
    def of(
        cls,
        values: Float[np.ndarray, "Q K"],
        allowed: Bool[np.ndarray, "Q K"],
        counted: Bool[np.ndarray, " K"] | None = None,
    ) -> Extent:
        """Return the extent of these cells; columns that are not counted have marks, but set no end of the colours."""
        finite = np.isfinite(values)
        found = (
            not allowed.all(),
            (allowed & (values == 0)).any(),
            (allowed & np.isnan(values)).any(),
            (allowed & np.isinf(values)).any(),
        )
        marks = frozenset(mark for mark, is_found in zip(_MARKS, found, strict=True) if is_found)
        drawn = allowed & finite if counted is None else allowed & finite & counted
        lowest = float(values.min(initial=np.inf, where=drawn & (values > 0)))
        return cls(float(values.max(initial=0.0, where=drawn)), marks, lowest)

    def __or__(self, other: Extent) -> Extent:
        return Extent(max(self.highest, other.highest), self.marks | other.marks, min(self.lowest, other.lowest))

    @property
    def said(self) -> list[str]:
        """What the marks mean."""
        return [mark for mark in _MARKS if mark in self.marks]

    def scale(self, is_log: bool = False) -> Scale:
        """Return a scale from 0, or over at most four powers of ten."""
        if not is_log or self.highest <= 0:
            return Scale(0.0, self.highest)
        low = max(self.lowest, self.highest / _WIDEST)
        return Scale(low, self.highest, is_log=True, is_cut=self.lowest < low)

    def signed(self) -> Scale:
        """Return a scale that reaches as far below zero as above."""
        reach = self.highest or 1.0
        return Scale(-reach, reach, is_signed=True)


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


def picture_of(head: HeadTrace, columns: Columns, pool: tuple[int, int], no_sink: bool = False) -> Picture:
    """Return the weights of a head as a picture; its rows are pooled as they are derived, and only that is kept.

    Args:
        head: the head, for the rows shown.
        columns: the keys shown.
        pool: how many rows and columns a cell of the picture stands for.
        no_sink: whether the first key is left out of the extent.
    """
    kept = []
    counted = np.arange(head.layer.num_keys)[columns] > 0 if no_sink else None
    for part in head.blocks():
        weights, allowed = part.weights[:, columns], drawn_cells(part)[:, columns]
        kept.append(Picture("", weights, allowed, Extent.of(weights, allowed, counted)).pooled(1, pool[1]))
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


def heatmaps(
    pictures: Sequence[Picture],
    rows: Axis,
    columns: Axis,
    pool: tuple[int, int],
    palette: Palette,
    width: int,
    scale: Scale,
    most_strips: int = STRIPS,
) -> Block:
    """Return the pictures in strips, each strip with the row labels at its left.

    Args:
        pictures: all of one shape.
        rows: the query axis, before pooling.
        columns: the key axis, before pooling.
        pool: how many rows and columns of them each cell of the pictures stands for.
        palette: how cells look.
        width: how many cells a strip may take.
        scale: of their colours.
        most_strips: more of them than this are narrowed to one cell a column.
    """
    row_axis, column_axis = rows.pooled(pool[0]), columns.pooled(pool[1])
    cell_width = 2
    panel_width = _panel_width(pictures, column_axis, cell_width)
    per_strip = (width - rows.width) // (panel_width + GAP)
    if panel_width > _room(rows, columns, width) or len(pictures) > per_strip * most_strips:
        cell_width = 1
        panel_width = _panel_width(pictures, column_axis, cell_width)
        per_strip = (width - rows.width) // (panel_width + GAP)
    per_strip = max(per_strip, 1)
    drawn = (_panel(picture, row_axis, column_axis, palette, cell_width, scale) for picture in pictures)
    panels = [Block(lines, panel_width) for lines in drawn]
    labels = row_axis.row_labels(2, palette)
    strips = [beside([labels, *panels[start : start + per_strip]], GAP) for start in range(0, len(panels), per_strip)]
    return stack(strips, gap=1)


def legend(scale: Scale, marks: Iterable[str], palette: Palette, width: int | None, cell_width: int = 2) -> Block:
    """Return what the colours of pictures say, and what their marks mean.

    Args:
        scale: of the colours.
        marks: what each mark means; an empty text is none.
        palette: how cells look.
        width: cells in a line; None is as many as it takes.
        cell_width: characters to a cell of the pictures.
    """
    line = ramp_line(scale, palette, cell_width)
    line += [Segment(", logarithmic", DIM)] if scale.is_log else []
    return flowing([line, *([Segment(palette.fit(mark), DIM)] for mark in marks if mark)], width)


def ramp_line(scale: Scale, palette: Palette, cell_width: int = 2) -> list[Segment]:
    """Return the colours or shades between two numbers; shades as they look in cells of a width."""
    ends = [f"{end:.4g}" for end in (scale.low, scale.high)]
    if scale.is_signed:
        ends = [palette.fit(sign) + ends[1] for sign in "−+"]
    ramp = palette.ramp(2 if palette.has_color else cell_width, scale.is_signed)
    if palette.has_color:
        ramp = [ramp[round(step * (len(ramp) - 1) / 8)] for step in range(9)]
    return [Segment(f"{ends[0]} ", DIM), *(Segment(*step) for step in ramp), Segment(f" {ends[1]}", DIM)]


def _room(rows: Axis, columns: Axis, width: int) -> int:
    """Return how many cells a strip has for pictures."""
    return max(width - rows.width - GAP - (1 if columns.boundary else 0), 4)


def _panel_width(pictures: Sequence[Picture], columns: Axis, cell_width: int) -> int:
    """Return how wide every picture is drawn: its cells, or the longest of the titles."""
    return max(len(columns) * cell_width + (1 if columns.boundary else 0), *(cell_len(p.title) for p in pictures))


def _panel(
    picture: Picture, rows: Axis, columns: Axis, palette: Palette, cell_width: int, scale: Scale
) -> list[list[Segment]]:
    drawn = palette.cells(picture.values, picture.allowed, scale, cell_width)
    lines = [[Segment(palette.fit(picture.title), BOLD)], columns.ticks(cell_width, palette)]
    for place, row in enumerate(drawn):
        if rows.boundary and place == rows.boundary:
            line = palette.fit("─") * (len(columns) * cell_width)
            lines.append([Segment(_crossed(line, columns.boundary * cell_width, palette), DIM)])
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
