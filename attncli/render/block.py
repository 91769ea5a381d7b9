"""Blocks: rectangles of Rich segments that can stand side by side, tables that fit or fold, and the room they take.

Many small cells are cheaper so than as a Table of Rich.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO
from itertools import islice, zip_longest
from typing import NamedTuple

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style

from attncli.render.palette import BOLD, DIM, Palette
from attncli.text import visible

COMFORTABLE = 100  # cells in a line where the output sets no width
_ALOUD = {  # titles of columns, as they are read
    "‖v‖": "length of v", "‖w·v‖": "length of weight times v", "q·k": "q dot k", "dim": "dimension", "cells": "head",
    "B − A": "B minus A", "p after": "probability after",
}  # fmt: skip


class Block(NamedTuple):
    """Lines of segments, none longer than `width` cells."""

    lines: Sequence[Sequence[Segment]]
    width: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the segments, line by line."""
        for line in self.lines:
            yield from line
            yield Segment.line()


def block(lines: Iterable[Sequence[Segment]]) -> Block:
    """Return lines as a block of their greatest width."""
    rows = [list(line) for line in lines]
    return Block(rows, max((Segment.get_line_length(line) for line in rows), default=0))


def stack(blocks: Iterable[Block], gap: int = 0) -> Block:
    """Return the blocks one above the other, with blank lines between them."""
    lines: list[Sequence[Segment]] = []
    width = 0
    for one in blocks:
        lines += [[]] * gap if lines else []
        lines += one.lines
        width = max(width, one.width)
    return Block(lines, width)


def hstack(blocks: Sequence[Block], gap: int = 2) -> Block:
    """Return the blocks side by side, their tops aligned."""
    lines, between = list[list[Segment]](), Segment(" " * gap)
    for row in zip_longest(*(one.lines for one in blocks), fillvalue=()):
        parts = (Segment.adjust_line_length(list(part), one.width) for part, one in zip(row, blocks, strict=True))
        lines.append(trimmed(segment for part in parts for segment in (*part, between)))
    return Block(lines, sum(one.width for one in blocks) + gap * (len(blocks) - 1))


def in_lines(blocks: Iterable[Block], gap: int, width: int | None) -> list[list[Block]]:
    """Return blocks in as few lines of `width` cells as they fit in; None is one line."""
    lines: list[list[Block]] = []
    for one in blocks:
        is_full = width is not None and lines and sum(each.width + gap for each in lines[-1]) + one.width > width
        if is_full or not lines:
            lines.append([])
        lines[-1].append(one)
    return lines


def flowing(parts: Iterable[Sequence[Segment]], width: int | None) -> Block:
    """Return unsplit parts behind each other, in as few lines of `width` cells as they fit in."""
    return stack(hstack(line, 3) for line in in_lines((block([part]) for part in parts), 3, width))


def in_words(text: str, width: int | None) -> list[str]:
    """Return text in lines of at most `width` cells, broken between words where one line has room for them."""
    lines = [""]
    for word in text.split(" "):
        room = None if width is None else width - cell_len(lines[-1])  # each begins with a blank
        if room is None or cell_len(word) <= room:
            lines[-1] += f" {word}"
            continue
        lines += [f" {part}" for part in chop_cells(word, width or 1)]
    return [line.removeprefix(" ") for line in lines if line] or [""]


def shortened(text: str, width: int, keeps_end: bool = False) -> str:
    """Return text of a user, a file or a vocabulary in at most `width` cells: all, or an end of it and an ellipsis."""
    text = visible(text)
    if cell_len(text) <= width:
        return text
    if not keeps_end:
        return set_cell_size(text, width - 1).rstrip() + "…"
    while cell_len(text) > width - 1:
        text = text[1:]
    return "…" + text.lstrip()


def padded(text: str, width: int, style: Style | None = None, align: str = ">") -> Segment:
    """Return text in exactly `width` cells: padded, or cut; aligned by `<` or `>`."""
    text = set_cell_size(text, width) if cell_len(text) > width else text
    padding = " " * (width - cell_len(text))
    return Segment(padding + text if align == ">" else text + padding, style)


def column_of(cells: Sequence[Cell], align: str) -> Block:
    """Return cells one above the other, as wide as the widest, aligned by `<` or `>`."""
    width = max(cell_len(text) for text, _ in cells)
    return Block([[padded(text, width, style, align)] for text, style in cells], width)


def grid(columns: Sequence[Block], width: int | None) -> Block:
    """Return columns side by side; those that do not fit follow below, each time behind the first one."""
    first, *others = columns
    lines = in_lines(others, 2, None if width is None else width - first.width - 2)
    return stack(hstack([first, *line]) for line in lines or [[]])


def trimmed(line: Iterable[Segment]) -> list[Segment]:
    """Return a line without the blanks at its end, which a narrow terminal would wrap; colour is not blank."""
    rest = list(line)
    while rest:
        text, style, _ = rest.pop()
        if style is not None and style.bgcolor is not None:
            return [*rest, Segment(text, style)]
        if text.rstrip():
            return [*rest, Segment(text.rstrip(), style)]
    return []


# --- tables ---

Cell = tuple[str, Style | None]


class Column(NamedTuple):
    """A column of a table.

    It is aligned by `<` or `>`; the style is of all of its cells, or of each.
    """

    title: str
    texts: Sequence[str]
    style: Style | Sequence[Style | None] | None = None
    align: str = ">"
    title_style: Style | None = DIM

    @property
    def cells(self) -> list[Cell]:
        """The title and the texts, each with its style."""
        styles = self.style if isinstance(self.style, Sequence) else [self.style] * len(self.texts)
        return [(self.title, self.title_style), *zip(self.texts, styles, strict=True)]

    @property
    def width(self) -> int:
        """How many cells of a line it takes."""
        return max(map(cell_len, (self.title, *self.texts)))


def table(columns: Sequence[Column], width: int | None, palette: Palette | None = None) -> Block:
    """Return columns with their titles; those that do not fit follow below, each time behind the first one.

    For a screen reader each row is a line that names its columns.
    """
    if palette is not None and palette.is_read_aloud:
        names = [_ALOUD.get(column.title.strip(), column.title.strip()) for column in columns]
        names = [name if name[-1:].isalpha() or not name else f"{name} is" for name in names]
        facts = [
            [f"{name} {text}".strip() for name, text in zip(names, map(str.strip, row), strict=True) if text]
            for row in zip(*(column.texts for column in columns), strict=True)
        ]
        lines = [", ".join(row) if len(row) > 1 else row[0].removeprefix(names[0]).strip() for row in facts]
        return block([Segment(part)] for line in lines for part in in_words(line, width))
    return grid([column_of(column.cells, column.align) for column in columns], width)


def ranking(columns: Sequence[Column], left_out: int, width: int | None, palette: Palette | None = None) -> Block:
    """Return a table of the first of a list, which counts those that are left out in a last line."""
    if left_out:
        columns = [
            column._replace(texts=[*column.texts, "" if place else f"{left_out:,} more"], style=[*styles, DIM])
            for place, column in enumerate(columns)
            for styles in [[style for _, style in column.cells[1:]]]
        ]
    return table(columns, width, palette)


def wrapping(rows: Iterable[Sequence[Cell]], align: str, width: int | None) -> Block:
    """Return rows of words in columns; the last one wraps where a line has no room for it."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    for number, side in enumerate(align, start=1):
        table.add_column(justify="right" if side == ">" else "left", no_wrap=number < len(align), overflow="fold")
    for row in rows:
        table.add_row(*(Text(text, style or "") for text, style in row))
    console = Console(width=width or 10**6, file=StringIO())
    return block(map(trimmed, console.render_lines(table, pad=False)))


def width_of(columns: Iterable[Column]) -> int:
    """Return how many cells columns take, with a gap behind each of them."""
    return sum(column.width + 2 for column in columns)


# --- room on a screen --------------------------------------------------------------------------------------

LONG = 64  # tokens; of more, a pipe too has no more than a screen, unless all is asked for in so many words
LINES = 40  # of a screen that says nothing


class Bounds(NamedTuple):
    """Room on a screen."""

    lines: int
    width: int


def cost(blocks: Iterable[Block]) -> int:
    """Return how many lines blocks take, with a blank one below each."""
    return sum(len(each.lines) + 1 for each in blocks)


def lines_of(parts: Iterable[RenderableType], width: int) -> int:
    """Return how many lines blocks and texts, which are wrapped, take, with a blank one below each."""
    return sum(
        len(part.lines) + 1
        if isinstance(part, Block)
        else 1 + sum(len(in_words(line, width)) for line in str(part).split("\n"))
        for part in parts
    )


def cut(text: str, bounds: Bounds) -> str:
    """Return a text that fits the bounds when it is wrapped; an ellipsis ends one that is cut."""
    lines = in_words(text, bounds.width)
    if len(lines) <= bounds.lines:
        return text
    *before, last = lines[: bounds.lines]
    return " ".join([*before, shortened(f"{last} …", bounds.width)])


def crop(lines: Iterable[Sequence[Segment]], bounds: Bounds) -> Block:
    """Return as much of some lines as there is room for."""
    shown = (Segment.adjust_line_length(list(line), bounds.width, pad=False) for line in islice(lines, bounds.lines))
    return Block(list(shown), bounds.width)


def join_facts(facts: Iterable[str], width: int, title: str = "") -> list[Segment]:
    """Return a title and as many facts behind it as a line has room for; the first ones matter most.

    The first of all is shortened where it is too long for a line.
    """
    text = title = shortened(title, width) if cell_len(title) > width else title
    for fact in facts:
        longer = f"{text} · {fact}" if text else shortened(fact, width) if cell_len(fact) > width else fact
        if fact and cell_len(longer) <= width:
            text = longer
    return [Segment(title, BOLD), Segment(text[len(title) :], DIM)]


def part_around(center: int, size: int, most: int) -> range:
    """Return a part of `size` places, at most `most` of them, with a place in its middle if that can be."""
    shown = min(size, most)
    start = min(max(center - shown // 2, 0), size - shown)
    return range(start, start + shown)
