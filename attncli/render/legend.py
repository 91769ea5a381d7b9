"""Legends of maps: a ramp of colours with weights on it, and a word for each mark."""

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
