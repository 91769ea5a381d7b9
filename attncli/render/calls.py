"""Calls of a running program: a line for each place, and below the table each line of code with what is wrong there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from textwrap import dedent
from typing import TYPE_CHECKING

from rich.console import Group
from rich.style import Style
from rich.text import Text

from attncli.analysis.calls.groups import joined_modules, joined_places
from attncli.masks.findings import Finding
from attncli.render.block import COMFORTABLE, Block, Cell, Column, shortened, table, width_of
from attncli.render.findings import SEVERITY_STYLES, finding_lines, tally
from attncli.render.masks import compared
from attncli.render.palette import BOLD, DIM, Palette
from attncli.text import plural, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attncli.analysis.calls.calls import Calls
    from attncli.analysis.calls.expectations import CallMismatch, UnexpectedError
    from attncli.analysis.calls.groups import CallGroup

    _Commands = Callable[[CallGroup, Finding], Sequence[str]]

_DROPPED = ("heads", "kind", "calls", "queries×keys", "module")  # the first goes first where a line is too short
_SHORTENED = ("module", "place", "mask")  # whose end says more than their beginning, but for a mask
_LEAST = 20  # cells of a line that each of them keeps while there are others
_WIDE = 1000  # where the output sets no width
_GREEN = Style(color="green")
_ROWS = 16  # of a map of wrong cells that a small screen has
_MOST_MAPS = 3  # of places whose masks are wrong


def calls_parts(
    calls: Calls,
    palette: Palette,
    width: int | None,
    commands: Callable[[CallGroup, Finding], Sequence[str]] | None = None,
    height: int | None = None,
) -> Iterator[RenderableType]:
    """Yield the table, what is wrong at each line of code, errors first, and how much that is.

    `commands` show more of a row and its finding. Of the lines of a screen wrong cells take half, or 16.
    """
    yield Text(calls.headline)
    rows = calls.rows
    if not rows:
        return
    yield _table(rows, palette, width)
    places: dict[object, list[CallGroup]] = {}
    for row in rows:
        places.setdefault(row.place[:3], []).append(row)
    lines = None if height is None else max(height // 2, _ROWS)
    parts = [part for alike in places.values() if (part := _at_a_line(calls, alike, palette, width, lines, commands))]
    for _, renderables in sorted(parts, key=lambda part: part[0]):
        yield Group(*renderables)
    if calls.findings:
        yield tally(calls.findings)


def _table(rows: Sequence[CallGroup], palette: Palette, width: int | None) -> Block:
    """Return a line for each place; where a line is too short, columns are left out, and names lose their beginning."""
    columns = [
        Column("place", [visible(str(row.place)) for row in rows], align="<"),
        Column("module", [visible(row.module or "") for row in rows], align="<"),
        Column("calls", [str(row.calls) for row in rows]),
        Column("kind", [row.api for row in rows], align="<"),
        Column("heads", [str(row.sizes[1]) for row in rows]),
        Column("queries×keys", [f"{row.sizes[2]}×{row.sizes[3]}" for row in rows]),
        Column("mask", [visible(row.mask) for row in rows], align="<"),
        Column("result", [_result(row)[0] for row in rows], [_result(row)[1] for row in rows], "<"),
    ]
    shown = {column.title: column for column in columns if any(column.texts)}
    if width is None or palette.is_read_aloud:
        return table([*shown.values()], width, palette)
    for dropped in ("", *_DROPPED):
        shown.pop(dropped, None)
        spare = sum(max(shown[title].width - _LEAST, 0) for title in _SHORTENED if title in shown)
        if width_of(shown.values()) - 2 - spare <= width:
            break
    for title in _SHORTENED:
        if title in shown and (excess := width_of(shown.values()) - 2 - width) > 0:
            own, most = shown[title], max(shown[title].width - excess, _LEAST)
            texts = [shortened(text, most, keeps_end=title != "mask") for text in own.texts]
            shown[title] = own._replace(texts=texts)
    return table([*shown.values()], None)


def _result(row: CallGroup) -> Cell:
    errors = sum(one.finding.severity == "error" for one in row.counts)
    notes = len(row.counts) - errors
    if errors:
        return plural(errors, "error"), SEVERITY_STYLES["error"]
    text = row.verdict + (f", {plural(notes, 'note')}" if notes else "")
    return text, _GREEN if text == "ok" else SEVERITY_STYLES["note"]


def _at_a_line(
    calls: Calls,
    rows: Sequence[CallGroup],
    palette: Palette,
    width: int | None,
    lines: int | None,
    commands: _Commands | None,
) -> tuple[bool, list[RenderableType]] | None:
    """Return what is wrong at a line of code, after whether that is no error; None where nothing is."""
    found: dict[tuple[str, str], list[tuple[CallGroup, Finding]]] = {}
    for row in rows:
        findings = [one.worded(row.calls) for one in row.counts]
        for finding in [*findings, *([row.unchecked] if row.unchecked else [])]:
            found.setdefault((finding.code, finding.severity), []).append((row, finding))
    if not found:
        return None
    findings = []
    for each in found.values():
        modules = joined_modules([track.place.module for row, _ in each for track in row.tracks])
        where = f"{modules}: " if modules and len(each) < len(rows) else ""
        finding = each[0][1]
        cells = finding.cells if finding.comparison is None else ()  # which are drawn
        findings.append(replace(finding, message=f"{where}{finding.message}", cells=cells))
    place = rows[0].place
    modules = joined_modules([track.place.module for row in rows for track in row.tracks])
    arrow = f"  --> {place} in {place.function}{f' ({modules})' if modules else ''}"
    parts: list[RenderableType] = [finding_lines(findings, width), Text(visible(arrow), BOLD)]
    parts += _source(calls, str(place), findings, width)
    drawn = next((finding.comparison for finding in findings if finding.comparison is not None), None)
    parts += [] if drawn is None else compared(drawn, palette, width or COMFORTABLE, lines)
    if commands is not None:
        row, worst = min(found.items(), key=lambda each: each[0][1] != "error")[1][0]
        for number, command in enumerate(commands(row, worst)):
            parts.append(Text.assemble((" " * 6 if number else "more: ", DIM), visible(command)))
    return not any(finding.severity == "error" for finding in findings), parts


def _source(calls: Calls, place: str, findings: Sequence[Finding], width: int | None) -> Iterator[Text]:
    """Yield the lines that made the masks of findings, and the line that uses them, as they are written."""
    notes = {}
    for line in sorted(line for finding in findings for line in finding.made_at):
        is_same_file = line.rpartition(":")[0] == place.rpartition(":")[0]
        notes[line] = f"  <-- mask made {'here' if is_same_file else f'at {line}'}"
    notes[place] = ""
    sources = {line: calls.source(line) for line in notes}
    codes = dedent("\n".join(sources.values())).split("\n")
    margin = max(len(line.rpartition(":")[2]) for line in sources) + 2
    for line, code in zip(sources, codes, strict=True):
        if code or notes[line]:
            room = max((width or _WIDE) - margin - 3 - len(notes[line]), _LEAST)
            parts = (f"{line.rpartition(':')[2]:>{margin}} | ", DIM), shortened(code, room), (notes[line], DIM)
            yield Text.assemble(*parts)


def wrong_parts(error: UnexpectedError, palette: Palette, room: int) -> Iterator[RenderableType]:
    """Yield the maps of the wrong cells of calls that are not as expected: of the first call of each place."""
    drawn: dict[tuple[object, ...], CallMismatch] = {}
    for one in error.wrong:
        if one.finding.cells:
            drawn.setdefault(one.call.place[:3], one)
    for one in [*drawn.values()][:_MOST_MAPS]:
        if (comparison := one.comparison) is not None:
            yield Group(Text(visible(joined_places([one.call.place]))), *compared(comparison, palette, room))
    if len(drawn) > _MOST_MAPS:
        yield Text(f"not drawn: {plural(len(drawn) - _MOST_MAPS, 'more place')}")
