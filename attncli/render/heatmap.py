"""Heat maps: one small picture a head, in strips as wide as the output allows; and differences around zero."""

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
from attncli.render.block import Block, beside, flowing, stack
from attncli.render.palette import BOLD, DIM, Colors, Palette
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


class Scale(NamedTuple):
    """What all the cells behind a picture are like, pooled or not.

    Attributes:
        highest: the largest finite value of the allowed cells, or 0.
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
    ) -> Scale:
        """Return the scale of these cells; columns that are not counted have marks, but no colours of their own."""
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

    def __or__(self, other: Scale) -> Scale:
        return Scale(max(self.highest, other.highest), self.marks | other.marks, min(self.lowest, other.lowest))

    def colors(self, is_log: bool = False) -> Colors:
        """Return the range of the colours: from 0, or over at most four powers of ten."""
        if not is_log or self.highest <= 0:
            return Colors(0.0, self.highest)
        low = max(self.lowest, self.highest / _WIDEST)
        return Colors(low, self.highest, is_log=True, is_cut=self.lowest < low)


class Picture(NamedTuple):
    """One head's map: values in the cells that are allowed."""

    title: str
    values: Float[np.ndarray, "Q K"]
    allowed: Bool[np.ndarray, "Q K"]
    scale: Scale = Scale()

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
        return Picture(self.title, np.where(some, highest, 0), some, self.scale)


def picture_of(head: HeadTrace, columns: Columns, pool: tuple[int, int], no_sink: bool = False) -> Picture:
    """Return the weights of a head as a picture; its rows are pooled as they are derived, and only that is kept.

    Args:
        head: the head, for the rows shown.
        columns: the keys shown.
        pool: how many rows and columns a cell of the picture stands for.
        no_sink: whether the first key is left out of the scale.
    """
    kept = []
    counted = np.arange(head.layer.num_keys)[columns] > 0 if no_sink else None
    for part in head.blocks():
        weights, allowed = part.weights[:, columns], drawn_cells(part)[:, columns]
        kept.append(Picture("", weights, allowed, Scale.of(weights, allowed, counted)).pooled(1, pool[1]))
    values = np.concatenate([picture.values for picture in kept])
    allowed = np.concatenate([picture.allowed for picture in kept])
    title = titled("head", head.layer.head_label(head.head))
    return Picture(title, values, allowed, scale_of(kept)).pooled(pool[0], 1)


def scale_of(pictures: Sequence[Picture]) -> Scale:
    """Return one scale for all the pictures."""
    return reduce(operator.or_, (picture.scale for picture in pictures), Scale())


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
    most_strips: int = STRIPS,
    colors: Colors | None = None,
) -> Block:
    """Return the pictures in strips, each strip with the row labels at its left.

    Args:
        pictures: all of one shape.
        rows: the query axis, before pooling.
        columns: the key axis, before pooling.
        pool: how many rows and columns of them each cell of the pictures stands for.
        palette: how cells look.
        width: how many cells a strip may take.
        most_strips: more of them than this are narrowed to one cell a column.
        colors: their range; None is from 0 to the largest value.
    """
    colors = colors or scale_of(pictures).colors()
    row_axis, column_axis = rows.pooled(pool[0]), columns.pooled(pool[1])
    cell_width = 2
    panel_width = _panel_width(pictures, column_axis, cell_width)
    per_strip = (width - rows.width) // (panel_width + GAP)
    if panel_width > _room(rows, columns, width) or len(pictures) > per_strip * most_strips:
        cell_width = 1
        panel_width = _panel_width(pictures, column_axis, cell_width)
        per_strip = (width - rows.width) // (panel_width + GAP)
    per_strip = max(per_strip, 1)
    drawn = (_panel(picture, row_axis, column_axis, palette, cell_width, colors) for picture in pictures)
    panels = [Block(lines, panel_width) for lines in drawn]
    labels = row_axis.row_labels(2, palette)
    strips = [beside([labels, *panels[start : start + per_strip]], GAP) for start in range(0, len(panels), per_strip)]
    return stack([part for strip in strips for part in (strip, Block([[]], 0))][:-1])


def legend(
    pictures: Sequence[Picture],
    palette: Palette,
    width: int | None,
    of_rows: str = "",
    colors: Colors | None = None,
    sink: str = "",
) -> Block:
    """Return the scale of the pictures, the marks that occur in them, and what the mark of their rows means.

    Args:
        pictures: the pictures.
        palette: how cells look.
        width: cells in a line; None is as many as it takes.
        of_rows: what the mark of their rows means.
        colors: their range; None is from 0 to the largest value.
        sink: the key that is left out of the range.
    """
    scale = scale_of(pictures)
    colors = colors or scale.colors()
    line = ramp_line(colors.low, colors.high, palette)
    line += [Segment(", logarithmic", DIM)] if colors.is_log else []
    marks = [mark for mark in _MARKS if mark in scale.marks] + ([of_rows] if of_rows else [])
    marks += ["- below the range"] if colors.is_cut else []
    marks += [f"+ beyond the range, which leaves out {sink}"] if sink else []
    return flowing([line, *([Segment(palette.fit(mark), DIM)] for mark in marks)], width)


def ramp_line(low: float, high: float, palette: Palette) -> list[Segment]:
    """Return the colours or shades between two numbers."""
    ramp = palette.ramp(2)
    shown = [ramp[round(step * (len(ramp) - 1) / 8)] for step in range(9)] if palette.has_color else ramp
    colors = [Segment(glyph, style) for glyph, style in shown]
    return [Segment(f"{low:.4g} ", DIM), *colors, Segment(f" {high:.4g}", DIM)]


def _room(rows: Axis, columns: Axis, width: int) -> int:
    """Return how many cells a strip has for pictures."""
    return max(width - rows.width - GAP - (1 if columns.boundary else 0), 4)


def _panel_width(pictures: Sequence[Picture], columns: Axis, cell_width: int) -> int:
    """Return how wide every picture is drawn: its cells, or the longest of the titles."""
    return max(len(columns) * cell_width + (1 if columns.boundary else 0), *(cell_len(p.title) for p in pictures))


def _panel(
    picture: Picture, rows: Axis, columns: Axis, palette: Palette, cell_width: int, colors: Colors
) -> list[list[Segment]]:
    drawn = palette.cells(picture.values, picture.allowed, colors.low, colors.high, cell_width, colors.is_log)
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


# The orange half of ColorBrewer's PuOr and the blue half of its RdBu (Brewer 2013): both sides are as dark as each
# other, and nobody who cannot tell red from green takes one for the other. (The darkest blue has a trace less green,
# 053061 there, so that the nearest of 256 colours is a blue too.)
_STOPS = ("7f3b08", "b35806", "e08214", "fdb863", "f7f7f7", "92c5de", "4393c3", "2166ac", "052e61")
_STEPS = {"truecolor": 255, "256": 9}  # odd: the one in the middle is zero's
# Without colour a sign and a shade, or where there is room for one character alone, two signs for the larger half.
_RAMPS = {
    ("blocks", 1): ("=", "-", " ", "+", "#"),
    ("blocks", 2): ("-█", "-▓", "-▒", "-░", "  ", "+░", "+▒", "+▓", "+█"),
    ("ascii", 1): ("=", "-", " ", "+", "#"),
    ("ascii", 2): ("-@", "-#", "-=", "-:", "  ", "+:", "+=", "+#", "+@"),
}


class SignedPalette(Palette):
    """How differences look: `high` is the largest of either sign."""

    @classmethod
    def of(cls, palette: Palette) -> SignedPalette:
        """Return the palette for differences on the same output."""
        return cls(palette.tier, palette.encoding, palette.colormap)

    def ramp(self, width: int) -> list[tuple[str, Style | None]]:
        """Return the cells of this width from the most negative to the most positive difference."""
        return self._ramp(width, _RAMPS, _STOPS, _STEPS)

    def cells(
        self,
        values: Float[np.ndarray, "Q K"],
        allowed: Bool[np.ndarray, "Q K"],
        low: float,
        high: float,
        width: int,
        is_log: bool = False,
    ) -> list[list[tuple[str, Style | None]]]:
        """Return a glyph and a style for every cell, on a scale from −high to high."""
        assert not is_log, "numbers of both signs have no logarithm"
        reach = high or 1.0
        return super().cells(values, allowed, -reach, reach, width)


def strongest(picture: Picture, rows: int, columns: int) -> Picture:
    """Return a picture in blocks of rows × columns cells, each its value farthest from zero."""
    if rows == columns == 1:
        return picture
    highest = picture.pooled(rows, columns)
    lowest = Picture(picture.title, -picture.values, picture.allowed, picture.scale).pooled(rows, columns)
    values = np.where(highest.values >= lowest.values, highest.values, -lowest.values)
    return Picture(picture.title, values, highest.allowed, picture.scale)


def signed_legend(
    scale: Scale, explained: frozenset[str], palette: SignedPalette, cell_width: int, width: int
) -> Block:
    """Return the scale of differences, which sign means what, and the marks that nothing has explained yet."""
    ramp = palette.ramp(2 if palette.has_color else cell_width)
    steps = min(len(ramp), 9)
    shown = [ramp[round(step * (len(ramp) - 1) / (steps - 1))] for step in range(steps)]
    line = [Segment(palette.fit(f"−{scale.highest:.4g} "), DIM)]
    line += [Segment(glyph, style) for glyph, style in shown]
    line.append(Segment(f" +{scale.highest:.4g}", DIM))
    from attncli.analysis.alignment import NAMES  # a mask is drawn without traces

    said = [f"− more in {NAMES[0]}", f"+ more in {NAMES[1]}", *sorted(scale.marks - explained)]
    return flowing([line, *([Segment(palette.fit(part), DIM)] for part in said)], width)
