"""What the colours and the marks of a map say: a ramp with weights on it, and a word for each mark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from rich.segment import Segment

from attncli.render.block import Block, flowing
from attncli.render.palette import DIM, Palette, Scale

_BAR = 36  # cells of the ramp in colour; with its words it fits 40
_SHORTEST_BAR = 20  # that gives way to marks
_GAP = 3  # cells between the parts
_DIGITS = 4  # of the numbers at the ends
_FEWER_DIGITS = 2  # of those between shades
_FEW = 4  # shades that have a number each; of more, every second one
_DECADES = 5  # that ticks may stand for


def legend(
    scales: Sequence[Scale],
    marks: Iterable[str],
    palette: Palette,
    width: int | None,
    cell_width: int = 2,
    is_half: bool = False,
) -> Block:
    """Return what the colours of pictures say, and what their marks mean; where no cell has a colour, the marks alone.

    Args:
        scales: of the colours of each picture; where they differ, the ramp is of shares of the largest weight of each.
        marks: what each mark means, behind the mark; an empty text is none.
        palette: how cells look.
        width: cells in a line; None is as many as it takes.
        cell_width: characters to a cell of the pictures.
        is_half: whether two cells share a character, so that marks are colours.
    """
    is_one = len(set(scales)) == 1
    ramp = ramp_line(scales[0] if is_one else Scale.up_to(1.0, scales[0].ramp), palette, width, cell_width)
    ramps = [ramp] if any(scale.low < scale.high for scale in scales) else []
    notes = [*([] if is_one else ["of the largest weight of each, beside its name"]), *filter(None, marks)]
    said_of = _half_mark if is_half else _mark
    return flowing([*ramps, *(said_of(each, palette) for each in notes)], width)


def legend_line(
    scale: Scale, marks: Iterable[str], palette: Palette, width: int, cell_width: int = 2, is_half: bool = False
) -> list[Segment]:
    """Return as much of the legend of one scale as a single line has room for: the ramp, then the marks."""
    notes = [(_half_mark if is_half else _mark)(each, palette) for each in marks]
    needed = sum(_GAP + sum(segment.cell_length for segment in mark) for mark in notes)
    line = ramp_line(scale, palette, min(max(width - needed, _SHORTEST_BAR), width), cell_width)
    line = line if scale.low < scale.high else []
    used = sum(segment.cell_length for segment in line)
    for mark in notes:
        gap = _GAP if line else 0
        used += gap + sum(segment.cell_length for segment in mark)
        if used > width:
            break
        line += [Segment(" " * gap), *mark]
    return line


def _mark(note: str, palette: Palette) -> list[Segment]:
    return [Segment(palette.fit(note), DIM)]


def _half_mark(note: str, palette: Palette) -> list[Segment]:
    """Return what a mark means where cells have no glyph: nothing is drawn of a masked one."""
    if note.startswith("·"):
        return [Segment("blank" + note[1:], DIM)]
    style = palette.swatch(note[0])
    return _mark(note, palette) if style is None else [Segment(note[0], style), Segment(note[1:], DIM)]


def ramp_line(scale: Scale, palette: Palette, width: int | None = None, cell_width: int = 2) -> list[Segment]:
    """Return the colours or shades of a scale, each number where its colour begins.

    Args:
        scale: of the colours.
        palette: how cells look.
        width: cells in a line; None is as many as it takes.
        cell_width: characters to a cell, without colours.
    """
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
    low, high = (palette.fit(text) for text in _ends(scale))
    low = low if len(low) + len(high) < cells else ""
    high = high if len(high) <= cells else ""
    written = list(low.ljust(cells - len(high)) + high)
    for value in _candidates(scale):
        text = palette.fit(_text(value, _DIGITS, scale.is_signed))
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
    whole, few = len(ramp), 1 if len(ramp) <= _FEW else 2
    line: list[Segment] = []
    for group in (whole,) if scale.is_signed else (few, whole):
        shades = ["".join(ramp[start : start + group]) for start in range(0, whole, group)]
        bounds = [_text(scale.at(start / whole), _FEWER_DIGITS) for start in range(group, whole, group)]
        line = [Segment(palette.fit(low), DIM)]
        for shade, bound in zip(shades, [*bounds, high], strict=True):
            line += [Segment(f" {shade} "), Segment(palette.fit(bound), DIM)]
        if width is None or sum(segment.cell_length for segment in line) <= width:
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
    if not 0 < top < math.inf:
        return
    powers = [10.0**power for power in range(math.floor(math.log10(top)), math.floor(math.log10(top)) - _DECADES, -1)]
    for factor in (1, 5, 2, 3):
        for size in (factor * power for power in powers):
            yield from (value for value in (size, -size) if scale.low < value < scale.high)


def _text(value: float, digits: int, is_signed: bool = False) -> str:
    """Return a number in so many digits, without the zero before its point."""
    text = f"{abs(value):.{digits}g}".removeprefix("0" if 0 < abs(value) < 1 else "")
    return ("−" if value < 0 else "+" if is_signed and value else "") + text
