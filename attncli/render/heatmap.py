"""Heat maps: one small picture a head, in strips as wide as the output allows, and the legend of their colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment

from attncli.render.block import Block, Bounds, flowing, hstack, stack
from attncli.render.matrix import HALF, NARROW, WIDE, Axis, CellGrid, GridCell, map_lines, number_text, titled
from attncli.render.palette import BOLD, DIM, Palette, Scale

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from attncli.trace.layer import HeadTrace, LayerTrace
    from attncli.trace.trace import Trace
    from attncli.trace.view import Columns, View


GAP = 1
_BETWEEN, _FEWEST = 3, 3  # cells between maps and a list, and heads in it
MOST = 64  # rows and columns of a picture; more are pooled
_HEADER = 2  # lines of a map: its title and its ticks
_MARKS = ("· masked", "0 exactly zero", "X NaN", "I infinite")


class Extent(NamedTuple):
    """Ends and odd cells of all the cells behind a picture, pooled or not."""

    highest: float = 0.0  # the largest finite value of the allowed cells, or 0
    marks: frozenset[str] = frozenset()  # the odd cells that have a mark of their own
    lowest: float = 0.0  # the least finite value of the allowed cells, or 0

    @classmethod
    def of(cls, values: Float[np.ndarray, "Q K"], allowed: Bool[np.ndarray, "Q K"]) -> Extent:
        """Return the extent of these cells."""
        odd = (~allowed, allowed & (values == 0), allowed & np.isnan(values), allowed & np.isinf(values))
        marks = frozenset(mark for mark, where in zip(_MARKS, odd, strict=True) if where.any())
        finite = allowed & np.isfinite(values)
        highest, lowest = (float(end(values, initial=0.0, where=finite)) for end in (np.max, np.min))
        return cls(highest, marks, lowest)

    @classmethod
    def joined(cls, extents: Sequence[Extent]) -> Extent:
        """Return the extent of the cells of all of these."""
        highest, marks, lowest = zip(*extents, strict=True)
        return cls(max(highest), frozenset().union(*marks), min(lowest))

    @property
    def mark_notes(self) -> list[str]:
        """Meanings of the marks."""
        return [mark for mark in _MARKS if mark in self.marks]

    def notes_on(self, scale: Scale) -> list[str]:
        """Return what the marks mean, those too of numbers beyond the ends of a scale."""
        odd = scale.odd(np.array([self.highest, self.lowest]))
        ends = {"+": f"+ more than {scale.high:g}", "-": f"- less than {scale.low:g}"}
        return [*self.mark_notes, *(words for mark, words in ends.items() if odd[mark].any())]


class Heatmap(NamedTuple):
    """One head's map: values in the cells that are allowed, the extent of all pooled into them, and what it does."""

    title: str
    values: Float[np.ndarray, "Q K"]
    allowed: Bool[np.ndarray, "Q K"]
    extent: Extent = Extent()
    label: str = ""

    def pooled(self, rows: int, columns: int, is_signed: bool = False) -> Heatmap:
        """Return the picture in blocks of rows × columns cells, each its largest allowed value, or NaN if it has one.

        A block is masked where all its cells are. Of signed numbers the one farthest from zero is shown.
        """
        if rows == columns == 1:
            return self
        if is_signed:
            highest = self.pooled(rows, columns).values
            lower = self._replace(values=-self.values).pooled(rows, columns)
            return lower._replace(values=np.where(highest >= lower.values, highest, -lower.values))
        found, some = np.where(self.allowed, self.values, -np.inf), self.allowed
        for axis, step in ((0, rows), (1, columns)):
            found, some = _in_steps(np.maximum, found, step, axis), _in_steps(np.logical_or, some, step, axis)
        return self._replace(values=np.where(some, found, 0), allowed=some)


def _in_steps(join: np.ufunc, cells: np.ndarray[Any, Any], step: int, axis: int) -> np.ndarray[Any, Any]:
    """Return each `step` cells in a row joined; a reduction over short rows takes several times as long."""
    along = np.moveaxis(cells, axis, 0)
    found = along[::step].copy(order="K")
    with np.errstate(invalid="ignore"):
        for place in range(1, step):
            part = along[place::step]
            join(found[: len(part)], part, out=found[: len(part)])
    return np.moveaxis(found, 0, axis)


def heatmap_of(head: HeadTrace, columns: Columns, pool: tuple[int, int]) -> Heatmap:
    """Return the weights of a head as a picture; its rows are pooled as they are derived, and only that is kept."""
    blocks = []
    for part in head.blocks():
        weights, allowed = part.weights[:, columns], part.drawn[:, columns]
        blocks.append(Heatmap("", weights, allowed, Extent.of(weights, allowed)).pooled(1, pool[1]))
    return joined(titled("head", head.layer.head_label(head.head)), blocks).pooled(pool[0], 1)


def joined(title: str, parts: Sequence[Heatmap]) -> Heatmap:
    """Return the picture whose rows are those of its parts, one after the other."""
    _, values, allowed, extents, _ = zip(*parts, strict=True)
    return Heatmap(title, np.concatenate(values), np.concatenate(allowed), Extent.joined(extents))


def scale_of_layer(trace: Trace, view: View, layer: LayerTrace) -> Scale:
    """Return the weights of colours: up to 1, or to the largest number that is shown if it is no share."""
    if layer.derived is None or layer.derived.is_distribution:
        return Scale.up_to(1.0, view.ramp)
    cells = view.cells(trace, layer)
    heads = (layer.head(head, cells.rows) for head in layer.heads)
    pictures = [heatmap_of(head, cells.of_columns, (MOST, MOST)) for head in heads]
    return Scale.up_to(max(picture.extent.highest for picture in pictures), view.ramp)


def pooling(rows: Axis, columns: Axis, width: int, lines: int | None = None) -> tuple[int, int]:
    """Return how many rows and columns are pooled into one cell of a picture of at most `width` cells.

    Where it has at most so many `lines` too, a cell stands for as many columns as rows, or more.
    """
    least = 1 if lines is None else -(-len(rows) // lines)
    high, wide = -(-len(rows) // MOST), -(-len(columns) // min(MOST, _room(rows, width)))
    return max(high, least), max(wide, least)


def size_of(cell: GridCell, titles: int, rows: Axis, columns: Axis) -> tuple[int, int]:
    """Return how many lines and cells a map takes, its title and ticks among them, without the labels of its rows.

    The axes are pooled, and `titles` is the width of the longest one.
    """
    high = _HEADER + -(-len(rows) // cell.rows) * cell.lines
    return high, max(len(columns) * cell.columns, titles)


def heatmaps(
    pictures: Sequence[Heatmap],
    rows: Axis,
    columns: Axis,
    pool: tuple[int, int],
    palette: Palette,
    width: int,
    scale: Scale,
    cell: GridCell | None = None,
    digits: int = 2,
) -> Block:
    """Return the pictures in strips, each strip with the row labels at its left.

    All are of one shape, which `pool` made of the axes. A `cell` of None is wide, or narrow where a map would not fit.
    """
    row_axis, column_axis = rows.pooled(pool[0]), columns.pooled(pool[1])
    titles = max(cell_len(f"{picture.title} {picture.label}".rstrip()) for picture in pictures)
    _, panel_width = size_of(cell or WIDE, titles, row_axis, column_axis)
    if cell is None:
        cell = WIDE if panel_width <= _room(rows, width) else NARROW
        _, panel_width = size_of(cell, titles, row_axis, column_axis)
    per_strip = max((width - rows.width) // (panel_width + GAP), 1)
    lattice = CellGrid(row_axis, column_axis, cell)
    ticks = column_axis.header(cell.columns)
    panels = []
    for picture in pictures:
        title = [Segment(picture.title, BOLD), Segment(f" {picture.label}".rstrip(), DIM)]
        cells = map_lines(picture.values, picture.allowed, lattice, palette, scale, digits=digits)
        panels.append(Block([title, ticks, *cells], panel_width))
    labels = row_axis.pooled(cell.rows).row_labels(_HEADER, cell.lines)
    strips = [hstack([labels, *panels[start : start + per_strip]], GAP) for start in range(0, len(panels), per_strip)]
    return stack(strips, gap=1)


def _room(rows: Axis, width: int) -> int:
    return max(width - rows.width - GAP, 4)


def head_maps(
    maps: Mapping[str, Mapping[tuple[int, int], float | None]],
    scale: Scale,
    palette: Palette,
    width: int,
    lines: int,
    digits: int,
) -> Block:
    """Return maps of layers × heads below their titles, in the largest cells with which they fit, or the smallest.

    In colour a cell has its number where there is room. Where layers are too many, they are columns.
    """
    texts = [number_text(value, digits) for one in maps.values() for value in one.values() if value is not None]
    number = GridCell(max(3, *map(len, texts)) + 1, 1)
    cells = (number, WIDE, NARROW, HALF) if palette.has_color else (WIDE, NARROW)
    drawn = Block([], 0)
    for cell, is_turned in [(cell, is_turned) for cell in cells for is_turned in (False, True)]:
        found = {
            title: {place[::-1] if is_turned else place: value for place, value in one.items()}
            for title, one in maps.items()
        }
        indices = [sorted({place[axis] for one in found.values() for place in one}) for axis in (0, 1)]
        pictures = []
        for title, one in found.items():
            values = np.array([[one.get((row, column)) for column in indices[1]] for row in indices[0]], float)
            label = "head × layer" if is_turned else "layer × head"
            pictures.append(Heatmap(title, values, ~np.isnan(values), label=label))
        axes = [Axis(("",) * len(each), tuple(each)) for each in indices]
        drawn = heatmaps(pictures, axes[0], axes[1], (1, 1), palette, width, scale, cell, digits)
        if drawn.width <= width and len(drawn.lines) <= lines:
            break
    return drawn


def maps_and_list(
    maps: Mapping[str, Mapping[tuple[int, int], float | None]],
    scale: Scale,
    palette: Palette,
    bounds: Bounds,
    digits: int,
    listed: Callable[[int], Block],
) -> Block:
    """Return maps of layers × heads next to a list of the first heads, or above it where a line is too short for both.

    `listed` returns the list of so many heads below a title, which counts the others in a last line.
    """
    lines, width = bounds
    rest = width - listed(_FEWEST).width - _BETWEEN
    grid = head_maps(maps, scale, palette, max(rest, 1), lines, digits)
    if grid.width <= rest and len(grid.lines) <= lines:
        return hstack([grid, listed(max(lines - 2, _FEWEST))], _BETWEEN)
    grid = head_maps(maps, scale, palette, width, max(lines - _FEWEST - 3, lines // 2), digits)
    return stack([grid, listed(max(lines - len(grid.lines) - 3, _FEWEST))], gap=1)


# --- legend: a ramp of colours with weights on it, and a word for each mark --------------------------------

_BAR = 36  # cells of the ramp in colour; with its words it fits 40
_SHORTEST_BAR = 20  # that gives way to marks
_GAP = 3  # cells between the parts
_DIGITS = 3  # of the numbers on colours
_DECADES = 5  # that ticks may stand for


def legend(
    scale: Scale, marks: Iterable[str], palette: Palette, width: int | None, cell_width: int = 2, is_half: bool = False
) -> Block:
    """Return what the colours of maps say, and what their marks mean; where no cell has a colour, the marks alone.

    Where two cells share a character marks are colours.
    """
    ramps = [ramp_line(scale, palette, width, cell_width)] if scale.low < scale.high else []
    return flowing([*ramps, *(mark_line(each, palette, scale, is_half) for each in filter(None, marks))], width)


def legend_line(
    scale: Scale, marks: Iterable[str], palette: Palette, width: int, cell_width: int = 2, is_half: bool = False
) -> list[Segment]:
    """Return as much of the legend as a single line has room for: the ramp, then the marks."""
    notes = [mark_line(each, palette, scale, is_half) for each in marks]
    room = width - sum(_GAP + Segment.get_line_length(mark) for mark in notes)
    ramp = ramp_line(scale, palette, min(max(room, _SHORTEST_BAR), width), cell_width)
    lines = flowing([*([ramp] if scale.low < scale.high else []), *notes], width).lines
    return list(lines[0]) if lines else []


def mark_line(note: str, palette: Palette, scale: Scale, is_half: bool) -> list[Segment]:
    """Return what a mark means; where cells share a character it is a colour, and masked ones are blank."""
    style = palette.swatch(note[0], scale.is_signed) if is_half else None
    if style is not None:
        return [Segment(note[0], style), Segment(note[1:], DIM)]
    return [Segment("blank" + note[1:] if is_half and note.startswith("·") else note, DIM)]


def ramp_line(scale: Scale, palette: Palette, width: int | None = None, cell_width: int = 2) -> list[Segment]:
    """Return the colours of a scale, each number where its colour begins; or the shades, each number between two."""
    if palette.has_color:
        cells = _BAR if width is None else min(_BAR, width)
        ramp, written = palette.ramp(1, scale.is_signed), [" "] * cells
        for share, text in ticks(scale, cells):
            start = _start(share, text, cells)
            written[start : start + len(text)] = text
        return [Segment(letter, ramp[(2 * at + 1) * len(ramp) // (2 * cells)][1]) for at, letter in enumerate(written)]
    glyphs = [glyph for glyph, _ in palette.ramp(cell_width, scale.is_signed)]
    for group in (len(glyphs),) if scale.is_signed else (cell_width, len(glyphs)):  # all numbers, or the ends alone
        line = [Segment(_text(scale, scale.low), DIM)]
        for start in range(0, len(glyphs), group):
            stop = start + group
            bound = scale.high if stop >= len(glyphs) else float(f"{scale.at(stop / len(glyphs)):.2g}")
            line += [Segment(f" {''.join(glyphs[start:stop])} "), Segment(_text(scale, bound), DIM)]
        if width is None or Segment.get_line_length(line) <= width:
            break
    return line


def ticks(scale: Scale, letters: int) -> list[tuple[float, str]]:
    """Return how far along the colours numbers stand, from 0 to 1: the ends, then round ones that have room.

    The colours are so many letters wide.
    """
    placed: dict[int, tuple[float, str]] = {}
    for value in (scale.high, scale.low, *_round_numbers(scale)):
        text, share = _text(scale, value), float(scale.placed(np.array([value]))[0])
        start = _start(share, text, letters)
        if len(text) <= letters and all(
            start > other + len(word) or other > start + len(text) for other, (_, word) in placed.items()
        ):
            placed[start] = share, text
    return [placed[start] for start in sorted(placed)]


def _start(share: float, text: str, letters: int) -> int:
    return min(max(round(share * (letters - 1) - len(text) / 2), 0), max(letters - len(text), 0))


def _round_numbers(scale: Scale) -> Iterator[float]:
    """Yield round numbers between the ends, those first that tell most: 0, powers of ten, then 5, 2 and 3 of them."""
    top = max(abs(scale.low), abs(scale.high))
    powers = [10.0 ** (math.floor(math.log10(top)) - down) for down in range(_DECADES)] if 0 < top < math.inf else []
    for value in (0.0, *(factor * power * sign for factor in (1, 5, 2, 3) for power in powers for sign in (1, -1))):
        if scale.low < value < scale.high:
            yield value


def _text(scale: Scale, value: float) -> str:
    """Return a number in a few digits; a logarithmic scale has lower ones too."""
    is_lowest = scale.ramp == "log" and not scale.is_signed and value == scale.low
    sign = "+" if scale.is_signed and value else ""
    return "≤" * is_lowest + f"{value:{sign}.{_DIGITS + (abs(value) >= 999)}g}"
