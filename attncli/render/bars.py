"""Bars: the length says how much, the side of the axis which sign; a colour only repeats it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rich.style import Style

from attncli.render.palette import Palette

Bar = tuple[str, Style | None]

_STYLES = (Style(color="#d55e00"), Style(color="#0072b2"))  # Okabe and Ito's: negative, positive


def bar(value: float, largest: float, width: int, palette: Palette) -> Bar:
    """Return a bar that begins at 0 on the left; NaN and the infinities have the marks of a heat map."""
    if not math.isfinite(value):
        return _mark(value), None
    style = _STYLES[1] if palette.has_color else None
    return palette.fit("█") * _cells(value, largest, width), style


def signed_bar(value: float, largest: float, width: int, palette: Palette) -> Bar:
    """Return a bar on either side of an axis in the middle."""
    half = (width - 1) // 2
    axis = palette.fit("│")
    if not math.isfinite(value):
        return " " * half + axis + _mark(value), None
    style = _STYLES[value > 0] if palette.has_color else None
    drawn = palette.fit("█") * _cells(abs(value), largest, half)
    return (drawn.rjust(half) + axis if value < 0 else " " * half + axis + drawn), style


def largest_of(values: Iterable[float | None]) -> float:
    """Return the size of the largest of some values that is finite, or 0."""
    return max((abs(value) for value in values if value is not None and math.isfinite(value)), default=0.0)


def _cells(value: float, largest: float, width: int) -> int:
    return min(round(value / largest * width), width) if largest > 0 else 0


def _mark(value: float) -> str:
    return "X" if math.isnan(value) else "I" if value > 0 else "-I"
