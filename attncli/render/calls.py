"""Calls of a running program: a line or a block for each place with what is wrong there, and maps of wrong cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Group
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from attncli.analysis.calls.groups import TITLES, joined_places
from attncli.render.block import COMFORTABLE, Block, Cell, block, grid, in_words, stack
from attncli.render.masks import compared
from attncli.render.palette import BOLD, DIM, Palette
from attncli.text import plural

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attncli.analysis.calls.calls import Calls
    from attncli.analysis.calls.expectations import CallMismatch, UnexpectedError
    from attncli.analysis.calls.groups import CallGroup

_ALIGN = "<<><>><<"
_LEAST = 36  # cells of a line that findings need next to a place
_MOST_MAPS = 3  # of places whose masks are wrong
_STYLES = {"error": Style(color="red"), "note": Style(color="yellow")}


def calls_parts(calls: Calls, palette: Palette, width: int | None) -> Iterator[RenderableType]:
    """Yield a line for each place, its findings beside it; where one does not fit, a short block for each."""
    headline, rows = block([[Segment(palette.fit(calls.headline))]]), calls.rows
    if not rows:
        yield headline
        return
    table = _table(rows, palette, width)
    yield stack([headline, table or stack(_block(row, palette, width or COMFORTABLE) for row in rows)])


def _table(rows: Sequence[CallGroup], palette: Palette, width: int | None) -> Block | None:
    """Return a line for each place; None where they are not wide enough for all of its words."""
    words = [[palette.label(text) for text in row.cells] for row in rows]
    columns = [column for column in range(len(TITLES) - 1) if any(row[column] for row in words)]
    align = "".join(_ALIGN[column] for column in columns) + _ALIGN[-1]
    titles: list[Cell] = [(palette.fit(TITLES[column]), DIM) for column in (*columns, -1)]
    places: list[list[Cell]] = [[(row[column], None) for column in columns] for row in words]
    findings: list[list[Cell]] = [_found(row, palette) or [(row.verdict, None)] for row in rows]
    room = None
    if width is not None:
        room = width - grid([titles[:-1], *places], align[:-1], None).width - 2
        longest = max(cell_len(text) for found in [*findings, titles[-1:]] for text, _ in found)
        if room < min(longest, _LEAST):
            return None
    lines: list[Sequence[Cell]] = [titles]
    for place, found in zip(places, findings, strict=True):
        for text, style in found:
            for part in in_words(text, room):
                lines.append([*place, (part, style)])
                place = [("", None)] * len(place)
    return grid(lines, align, None)


def _block(row: CallGroup, palette: Palette, width: int) -> Block:
    """Return a place in some lines: where it is, what ran there, and what is wrong."""
    # The line stands at the end of the first word, which is never split.
    where = palette.shortened(str(row.place), width - 4, keeps_end=True)
    module = f" ({row.module})" if row.module else ""
    found = _found(row, palette)
    _, _, _, api, heads, sizes, mask = row.cells
    ran = [plural(row.calls, "call"), api, f"{heads} head{'s' * (heads != '1')}", sizes, row.dtype, mask]
    ran += [] if found else [row.verdict]
    texts = [(f"{where} {palette.label(row.place.function + module)}", BOLD), (palette.label(" · ".join(ran)), None)]
    texts += [(f"{'error: ' * (style is _STYLES['error'])}{text}", style) for text, style in found]
    lines: list[list[Segment]] = []
    for index, (text, style) in enumerate(texts):
        first, *more = in_words(text, width - 4)
        lines += [[Segment("  " * bool(index) + first, style)], *([Segment(f"    {part}", style)] for part in more)]
    return block(lines)


def _found(row: CallGroup, palette: Palette) -> list[Cell]:
    return [(palette.label(one.text(row.calls)), _STYLES[one.finding.severity]) for one in row.counts]


def wrong_parts(error: UnexpectedError, palette: Palette, room: int) -> Iterator[RenderableType]:
    """Yield the maps of the wrong cells of calls that are not as expected: of the first call of each place."""
    drawn: dict[tuple[object, ...], CallMismatch] = {}
    for one in error.wrong:
        if one.finding.cells:
            drawn.setdefault(one.call.place[:3], one)
    for one in [*drawn.values()][:_MOST_MAPS]:
        cells = one.cells
        if cells is not None:
            where, comparison = cells
            name = ", ".join(filter(None, (joined_places([one.call.place]), where)))
            yield Group(Text(palette.label(name)), *compared(comparison, palette, room))
    if len(drawn) > _MOST_MAPS:
        yield Text(f"not drawn: {plural(len(drawn) - _MOST_MAPS, 'more place')}")
