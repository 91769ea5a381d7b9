"""Tables that fill the output: columns that fit or fold, numbers, tokens, and bars whose length says how much."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.cells import cell_len
from rich.style import Style

from attncli.analysis.metric_names import Metric
from attncli.render.axes import LONGEST_LABEL
from attncli.render.block import Block, grid
from attncli.render.heatmap import COMFORTABLE
from attncli.render.matrix import DIGITS, WIDEST_FIXED, number_text
from attncli.render.palette import Palette
from attncli.render.screen import LINES
from attncli.trace.tokens import Token

if TYPE_CHECKING:
    from jaxtyping import Float

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


Words = list[tuple[str, Style | None]]

# What tells heads apart comes first; the last ones are the first to go.
_BY_USE: tuple[Metric, ...] = (
    "entropy", "sink", "previous", "induction", "self", "next", "special", "duplicate", "distance", "max_weight",
    "effective_keys", "max_score",
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Lines of words, and numbers in columns that have names.

    Attributes:
        names: of the columns, but for the first one; the one that the lines are sorted by comes first.
        lines: a header and the others, each with the words of the first column and one more for every name.
        known: the names of the columns that hold something.
    """

    names: tuple[Metric, ...]
    lines: Sequence[Words]
    known: frozenset[Metric]

    @cached_property
    def widths(self) -> list[int]:
        """How many cells each column takes, the gap before it included."""
        return [max(cell_len(line[place][0]) for line in self.lines) + 2 for place in range(len(self.names) + 1)]

    @property
    def width(self) -> int:
        """How many cells it takes in one piece."""
        return sum(self.widths) - 2

    def of(self, kept: frozenset[Metric]) -> Table:
        """Return the table with these columns alone."""
        places = [0, *(place for place, name in enumerate(self.names, start=1) if name in kept)]
        names = tuple(name for name in self.names if name in kept)
        return replace(self, names=names, lines=[[line[place] for place in places] for line in self.lines])

    def within(self, width: int) -> Table:
        """Return the table with the most useful of its columns that stand in one line of `width` cells."""
        kept: list[Metric] = [self.names[0]]
        for name in _BY_USE:
            if name in self.names[1:] and self.of(frozenset([*kept, name])).width <= width:
                kept.append(name)
        return self.of(frozenset(kept))

    def drawn(self, width: int | None) -> Block:
        """Return it with columns that do not fit below the others."""
        return grid(self.lines, ">" * (len(self.names) + 1), width)


def fitting(tables: Sequence[Table], width: int | None) -> tuple[Block, tuple[Metric, ...]]:
    """Return a table as wide as the output, and the names of the columns that it shows.

    Columns that hold nothing go first. What is still too wide is folded, as long as all pieces stand on one screen;
    of more lines than that nobody could say to which one a number belongs, so that columns go.

    Args:
        tables: the same one with ever fewer digits.
        width: cells in a line; None is as many as it takes.
    """
    if width is None:
        return tables[0].drawn(None), tables[0].names
    known = [table.of(table.known) for table in tables]
    for table in (*tables, *known):
        if table.width <= width:
            return table.drawn(width), table.names
    folded = min((table.drawn(width) for table in known), key=lambda block: len(block.lines))
    if len(folded.lines) <= LINES:
        return folded, known[0].names
    kept = frozenset(known[-1].within(width).names)
    shown = [table.of(kept) for table in known]
    best = next((table for table in shown if table.width <= width), shown[-1])
    return best.drawn(width), best.names
