"""What the colours and the marks of a map say: a ramp with weights on it, and a word for each mark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from rich.segment import Segment

from attncli.render.block import Block, flowing
from attncli.render.palette import DIM, Palette, Scale

_BAR = 36  # cells of the ramp in colour; with its words it fits 40
_SHORTEST_BAR = 20  # that gives way to marks
_GAP = 3  # cells between the parts
_DIGITS = 4  # of the numbers at the ends
_FEWER_DIGITS = 2  # of those between shades
_DECADES = 5  # that ticks may stand for


def legend(
    scale: Scale,
    marks: Iterable[str],
    palette: Palette,
    width: int | None,
    cell_width: int = 2,
    is_half: bool = False,
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
    line: list[Segment] = []
    for part in (*([ramp] if scale.low < scale.high else []), *notes):
        longer = [*line, Segment(" " * _GAP * bool(line)), *part]
        if Segment.get_line_length(longer) > width:
            break
        line = longer
    return line


def mark_line(note: str, palette: Palette, scale: Scale, is_half: bool) -> list[Segment]:
    """Return what a mark means; where cells share a character it is a colour, and masked ones are blank."""
    style = palette.swatch(note[0], scale.is_signed) if is_half else None
    if style is not None:
        return [Segment(note[0], style), Segment(note[1:], DIM)]
    return [Segment("blank" + note[1:] if is_half and note.startswith("·") else note, DIM)]


def ramp_line(scale: Scale, palette: Palette, width: int | None = None, cell_width: int = 2) -> list[Segment]:
    """Return the colours or shades of a scale, each number where its colour begins."""
    if palette.has_color:
        return _bar(scale, palette, _BAR if width is None else min(_BAR, width))
    return _shades(scale, palette, width, cell_width)


def ticks(scale: Scale) -> Iterator[tuple[float, str]]:
    """Yield numbers to write beside the colours of a scale: its ends, then round ones, those first that tell most."""
    yield from zip((scale.low, scale.high), _ends(scale), strict=True)
    for value in _candidates(scale):
        yield value, _text(value, _DIGITS, scale.is_signed)


def _bar(scale: Scale, palette: Palette, cells: int) -> list[Segment]:
    """Return the colours one beside the other, with numbers upon them where they stand; the highest matters most."""
    low, high = _ends(scale)
    low = low if len(low) + len(high) < cells else ""
    high = high if len(high) <= cells else ""
    written = list(low.ljust(cells - len(high)) + high)
    for value in _candidates(scale):
        text = _text(value, _DIGITS, scale.is_signed)
        start = round(scale.placed(np.array([value]))[0] * (cells - 1) - len(text) / 2)
        around = written[max(start - 1, 0) : start + len(text) + 1]
        if len(around) == len(text) + 2 and set(around) == {" "}:
            written[start : start + len(text)] = text
    ramp = palette.ramp(1, scale.is_signed)
    steps = (int((place + 0.5) / cells * len(ramp)) for place in range(cells))
    return [Segment(letter, ramp[step][1]) for letter, step in zip(written, steps, strict=True)]


def _shades(scale: Scale, palette: Palette, width: int | None, cell_width: int) -> list[Segment]:
    """Return the shades in order, with the numbers between which they stand; between all of them where that fits."""
    ramp = [glyph for glyph, _ in palette.ramp(cell_width, scale.is_signed)]
    low, high = _ends(scale)
    whole = len(ramp)
    line: list[Segment] = []
    for group in (whole,) if scale.is_signed else (cell_width, whole):
        shades = ["".join(ramp[start : start + group]) for start in range(0, whole, group)]
        bounds = [_text(scale.at(start / whole), _FEWER_DIGITS) for start in range(group, whole, group)]
        line = [Segment(low, DIM)]
        for shade, bound in zip(shades, [*bounds, high], strict=True):
            line += [Segment(f" {shade} "), Segment(bound, DIM)]
        if width is None or Segment.get_line_length(line) <= width:
            break
    return line


def _ends(scale: Scale) -> tuple[str, str]:
    """Return the numbers at the ends; what is less than the lowest of a logarithmic ramp has its colour."""
    low, high = (_text(end, _DIGITS, scale.is_signed) for end in (scale.low, scale.high))
    return ("≤" + low if scale.ramp == "log" and not scale.is_signed else low), high


def _candidates(scale: Scale) -> Iterator[float]:
    """Yield round numbers between the ends, those first that tell most: 0, powers of ten, then 5, 2 and 3 of them."""
    top = max(abs(scale.low), abs(scale.high))
    if scale.low < 0 < scale.high:
        yield 0.0
    if 0 < top < math.inf:
        highest = math.floor(math.log10(top))
        for factor in (1, 5, 2, 3):
            for size in (factor * 10.0**power for power in range(highest, highest - _DECADES, -1)):
                yield from (value for value in (size, -size) if scale.low < value < scale.high)


def _text(value: float, digits: int, is_signed: bool = False) -> str:
    """Return a number in so many digits, without the zero before its point."""
    text = f"{abs(value):.{digits}g}".removeprefix("0" if 0 < abs(value) < 1 else "")
    return ("−" if value < 0 else "+" if is_signed and value else "") + text
