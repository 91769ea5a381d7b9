"""Calls of a running program: a table with a row a place and what is wrong there, and maps of wrong cells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Group
from rich.segment import Segment
from rich.text import Text

from attncli.analysis.calls.rows import named
from attncli.analysis.calls.table import TITLES, cells, said
from attncli.render.block import Block, block, grid, stack
from attncli.render.masks import compared
from attncli.render.palette import DIM, Palette
from attncli.render.tables import Cell, wrapped
from attncli.text import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attncli.analysis.calls.calls import Calls
    from attncli.analysis.calls.expected import UnexpectedError, Wrong
    from attncli.analysis.calls.rows import Row

_ALIGN = "<<><>><<"
_LEAST = 36  # cells of a line that findings need; where there are fewer, they stand below the table
_MOST_MAPS = 3  # of places whose masks are wrong
_LONGEST = 40  # cells of a place, a module or a mask where the output has a width


def calls_parts(calls: Calls, palette: Palette, width: int | None) -> Iterator[RenderableType]:
    """Yield a row for each place; findings stand below where there is no room for them beside it.

    Args:
        calls: what was seen.
        palette: how words look.
        width: cells in a line; None is as many as it takes.
    """
    headline = block([[Segment(palette.fit(calls.headline))]])
    if not len(calls):
        yield headline
        return
    table = _Table(calls, palette, width)
    beside = table.beside()
    yield stack([headline, beside or table.alone()])
    if beside is None and (below := table.below()):
        yield below


class _Table:
    """Rows of calls in words that fit the output."""

    def __init__(self, calls: Calls, palette: Palette, width: int | None) -> None:
        self._calls, self._palette, self._width = calls, palette, width
        # A line that is folded begins with the place again: there is room for two such words.
        self._longest = None if width is None else min(_LONGEST, (width - 2) // 2)
        words = [[self._word(*each) for each in enumerate(cells(row))] for row in calls]
        columns = [column for column in range(len(TITLES) - 1) if any(row[column] for row in words)]
        self._align = "".join(_ALIGN[column] for column in columns) + _ALIGN[-1]
        self._titles = [(palette.fit(TITLES[column]), DIM) for column in (*columns, -1)]
        self._rows: list[list[Cell]] = [[(row[column], None) for column in columns] for row in words]

    def beside(self) -> Block | None:
        """Return the table with its findings in a column; None where that would be too narrow."""
        room = None
        if self._width is not None:
            bare = grid([self._titles[:-1], *self._rows], self._align[:-1], None).width
            room = self._width - bare - 2
            if room < _LEAST:
                return None
        lines: list[list[Cell]] = []
        for row, own in zip(self._calls, self._rows, strict=True):
            first, *more = self._said(row) or [row.unfound]
            lines.append([*own, (first, None)])
            lines += [[*[("", None)] * len(own), (one, None)] for one in more]
        if room is not None:
            lines = wrapped(lines, room)
        return grid([self._titles, *lines], self._align, None)

    def alone(self) -> Block:
        """Return the table with nothing but the codes of its findings."""
        codes = [", ".join(dict.fromkeys(one.code for one in row.findings)) or row.unfound for row in self._calls]
        rows = [[*own, (code, None)] for own, code in zip(self._rows, codes, strict=True)]
        return grid([self._titles, *rows], self._align, self._width)

    def below(self) -> Text | None:
        """Return the findings as lines of their own."""
        palette = self._palette
        lines = [f"{palette.label(str(row.place))} {one}" for row in self._calls for one in self._said(row)]
        return Text("\n".join(lines)) if lines else None

    def _said(self, row: Row) -> list[str]:
        return [self._palette.label(said(one, row.calls)) for one in row.noticed]

    def _word(self, column: int, text: str) -> str:
        if self._longest is None:
            return self._palette.label(text)
        if TITLES[column] != "place":
            return self._palette.shortened(text, self._longest, keeps_end=TITLES[column] == "module")
        # The name of the file and the line are at its end; those of a function's class are where it begins.
        where, _, function = text.rpartition("  ")
        function = self._palette.shortened(function, max(self._longest // 2, self._longest - cell_len(where) - 2))
        where = self._palette.shortened(where, self._longest - cell_len(function) - 2, keeps_end=True)
        return f"{where}  {function}"


def wrong_parts(error: UnexpectedError, palette: Palette, room: int) -> Iterator[RenderableType]:
    """Yield the maps of the wrong cells of calls that are not as expected: of the first call of each place.

    Args:
        error: what differs.
        palette: how words and cells look.
        room: cells in a line.
    """
    drawn: dict[tuple[object, ...], Wrong] = {}
    for one in error.wrong:
        if one.finding.cells:
            drawn.setdefault(one.call.place[:3], one)
    for one in [*drawn.values()][:_MOST_MAPS]:
        cells = one.cells
        if cells is not None:
            name = ", ".join(filter(None, (named([one.call.place]), cells.where)))
            yield Group(Text(palette.label(name)), *compared(cells.comparison, palette, room))
    if len(drawn) > _MOST_MAPS:
        yield Text(f"not drawn: {counted(len(drawn) - _MOST_MAPS, 'more place')}")
