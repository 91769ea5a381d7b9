"""Bars of numbers, and how numbers and tokens look in tables that have them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.render.block import COMFORTABLE, Block, Cell, Column, ranking, shortened, width_of
from attncli.render.matrix import DIGITS, LONGEST_LABEL, WIDEST_FIXED, number_text
from attncli.render.palette import SIGNS, Palette, Scale
from attncli.trace.tokens import Token

if TYPE_CHECKING:
    from jaxtyping import Float

    from attncli.trace.view import Ramp

_NARROWEST_BAR, _WIDEST_BAR, _WIDEST_SIGNED_BAR = 7, 20, 41


def bar(weight: float, largest: float, width: int, palette: Palette, ramp: Ramp | None = None) -> Cell:
    """Return a bar that begins at 0 on the left, in the colour of its weight; what is not finite is a mark."""
    if not math.isfinite(weight):
        return _mark(weight), None
    return "█" * _cells(weight, largest, width), palette.ink(weight, Scale.up_to(1.0, ramp))


def signed_bar(value: float, largest: float, width: int, palette: Palette) -> Cell:
    """Return a bar that begins at 0 on the left, of another colour or shade where the value is negative."""
    if not math.isfinite(value):
        return _mark(value), None
    style = SIGNS[value > 0] if palette.has_color else None
    return ("█" if value > 0 or palette.has_color else "▒") * _cells(abs(value), largest, width), style


def bar_column(bars: Iterable[Cell]) -> Column:
    """Return bars below each other."""
    texts, styles = zip(*bars, strict=True)
    return Column("", texts, styles, "<", title_style=None)


def largest_of(values: Iterable[float | None]) -> float:
    """Return the size of the largest of some values that is finite, or 0."""
    return max((abs(value) for value in values if value is not None and math.isfinite(value)), default=0.0)


def _cells(value: float, largest: float, width: int) -> int:
    return min(round(value / largest * width), width) if largest > 0 else 0


def _mark(value: float) -> str:
    return "X" if math.isnan(value) else "I" if value > 0 else "-I"


@dataclass(frozen=True)
class TableFormat:
    """Room for tables, and how numbers and tokens look in them."""

    palette: Palette
    width: int | None
    precision: int | None = None  # digits after the point; None is 4
    ramp: Ramp | None = None

    @property
    def _digits(self) -> int:
        return DIGITS if self.precision is None else self.precision

    @property
    def room(self) -> int:
        """Cells that a line may take, also where the output sets no width."""
        return self.width or COMFORTABLE

    def named(self, token: Token, longest: int = LONGEST_LABEL) -> str:
        """Return a token as `2 flies`."""
        return f"{token.index} {shortened(token.label, longest)}"

    def number(self, value: Any) -> str:
        """Return a number by itself; one that fixed decimals would show as nothing keeps its size."""
        number, digits = float(value), self._digits
        if 0 < abs(number) < 0.5 * 10**-digits:
            return f"{number:.{max(digits - 2, 1)}e}"
        return number_text(number, digits)

    def column(self, values: Float[np.ndarray, " N"], places: Sequence[int]) -> list[str]:
        """Return numbers of a column."""
        chosen = values[list(places)]
        is_large = bool((np.abs(chosen[np.isfinite(chosen)]) >= WIDEST_FIXED).any())
        return [number_text(value, self._digits, is_large) for value in chosen.tolist()]

    def cell(self, value: Any) -> str:
        """Return a number of a column, or a mark; a blank where the layer has none."""
        if value is None or isinstance(value, str):
            return value or ""
        return number_text(float(value), self._digits)

    def with_bars(
        self,
        columns: Sequence[Column],
        place: int,
        values: Sequence[float | None],
        largest: float,
        left_out: int = 0,
        is_signed: bool = False,
    ) -> Block:
        """Return a table with bars in front of one of its columns, which counts rows that are left out."""
        width = self._bar_width(columns, place, _WIDEST_SIGNED_BAR if is_signed else _WIDEST_BAR)
        if not width or self.palette.is_read_aloud:
            return ranking(columns, left_out, self.width, self.palette)
        draw = signed_bar if is_signed else partial(bar, ramp=self.ramp)
        bars = [("", None) if one is None else draw(one, largest, width, self.palette) for one in values]
        return ranking([*columns[:place], bar_column(bars), *columns[place:]], left_out, self.width)

    def _bar_width(self, columns: Sequence[Column], place: int, widest: int) -> int:
        """Return how wide bars in front of a column may be: what all columns leave free, or those before it.

        Where these fill the line there are none.
        """
        left = self.room - width_of(columns)
        if -2 <= left < _NARROWEST_BAR:  # no gap is behind the last column
            return 0
        left = left if left >= _NARROWEST_BAR else self.room - width_of(columns[:place])
        return max(min(left, widest), _NARROWEST_BAR)
