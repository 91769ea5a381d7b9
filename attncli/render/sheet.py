"""What the tables of an explanation share: how numbers and tokens are written, and bars that fill what is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.cells import cell_len
from rich.style import Style

from attncli.render.axes import LONGEST_LABEL
from attncli.render.bars import bar
from attncli.render.block import Block, grid
from attncli.render.heatmap import COMFORTABLE
from attncli.render.matrix import DIGITS, WIDEST_FIXED, number_text
from attncli.render.palette import Palette
from attncli.trace.tokens import Token

if TYPE_CHECKING:
    from jaxtyping import Float

Line = list[tuple[str, Style | None]]

_NARROWEST_BAR, _WIDEST_BAR = 7, 20


@dataclass(frozen=True)
class Sheet:
    """Where tables go.

    Attributes:
        palette: how bars and words look.
        width: cells in a line; None is as many as it takes.
        precision: digits after the point; None is four.
    """

    palette: Palette
    width: int | None
    precision: int | None = None

    @property
    def _digits(self) -> int:
        return DIGITS if self.precision is None else self.precision

    @property
    def room(self) -> int:
        """How many cells a line may take, also where the output sets no width."""
        return self.width or COMFORTABLE

    def named(self, token: Token, longest: int = LONGEST_LABEL) -> str:
        """Return a token as `2 flies`."""
        return f"{token.index} {self.palette.shortened(token.label, longest)}"

    def number(self, value: Any) -> str:
        """Return a number that stands alone; one that fixed decimals would show as nothing keeps its size."""
        number, digits = float(value), self._digits
        if 0 < abs(number) < 0.5 * 10**-digits:
            return f"{number:.{max(digits - 2, 1)}e}"
        return number_text(number, digits)

    def column(self, values: Float[np.ndarray, " N"], places: Sequence[int]) -> list[str]:
        """Return numbers that stand in a column."""
        chosen = values[list(places)]
        finite = chosen[np.isfinite(chosen)]
        is_large = bool(finite.size) and float(np.abs(finite).max()) >= WIDEST_FIXED
        return [number_text(value, self._digits, is_large) for value in chosen.tolist()]

    def known(self, value: Any) -> str:
        """Return a number or a mark; a blank where the layer has none."""
        return "" if value is None else self.palette.fit(value) if isinstance(value, str) else self.number(value)

    def with_bars(self, lines: list[Line], column: int, values: Sequence[float | None], largest: float) -> Block:
        """Return a table with bars in front of a column, one for each line but the header.

        Args:
            lines: the table, its header first.
            column: which column is behind the bars; those before it are numbers, but for a first one of keys.
            values: what the bars say; None is no bar.
            largest: the value of a bar as long as can be.
        """
        width = self.bar_width(lines, column, _WIDEST_BAR)
        drawn_bars = (("", None) if value is None else bar(value, largest, width, self.palette) for value in values)
        bars: Line = [("", None), *drawn_bars]
        drawn = [[*line[:column], each, *line[column:]] for line, each in zip(lines, bars, strict=True)]
        align = ">" * column + "<" + ">" * (len(lines[0]) - column)
        return self.grid(drawn, ("<" if lines[0][0][0] == "key" else ">") + align[1:])

    def bar_width(self, lines: list[Line], column: int, widest: int) -> int:
        """Return how wide bars in front of a column may be: what all columns leave, or those before it."""
        widths = _widths(lines)
        left = self.room - sum(widths)
        if left < _NARROWEST_BAR:
            left = self.room - sum(widths[:column])
        return max(min(left, widest), _NARROWEST_BAR)

    def fits(self, lines: list[Line]) -> bool:
        """Return whether all columns of a table stand beside each other."""
        return sum(_widths(lines)) - 2 <= self.room

    def grid(self, lines: list[Line], align: str) -> Block:
        """Return a table; columns that do not fit follow below."""
        return grid(lines, align, self.width)


def _widths(lines: list[Line]) -> list[int]:
    """Return how many cells each column takes, a gap included."""
    return [max(cell_len(line[place][0]) for line in lines) + 2 for place in range(len(lines[0]))]
