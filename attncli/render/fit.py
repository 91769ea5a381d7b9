"""Room on a screen: lines that blocks take, and as much of lines, facts, places or heads as fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from rich.cells import cell_len
from rich.console import RenderableType
from rich.segment import Segment

from attncli.render.block import Block, in_words
from attncli.render.palette import BOLD, DIM, Palette

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
    return " ".join([*before, Palette().shortened(f"{last} …", bounds.width)])


def crop(lines: Iterable[Sequence[Segment]], bounds: Bounds) -> Block:
    """Return as much of some lines as there is room for."""
    shown = [list(line) for line, _ in zip(lines, range(bounds.lines), strict=False)]
    return Block([Segment.adjust_line_length(line, bounds.width, pad=False) for line in shown], bounds.width)


def join_facts(facts: Iterable[str], width: int, palette: Palette, title: str = "") -> list[Segment]:
    """Return a title and as many facts behind it as a line has room for; the first ones matter most.

    The first of all is shortened where it is too long for a line.
    """
    text = title = palette.shortened(title, width) if cell_len(title) > width else title
    for fact in facts:
        longer = f"{text} · {fact}" if text else palette.shortened(fact, width) if cell_len(fact) > width else fact
        if fact and cell_len(longer) <= width:
            text = longer
    return [Segment(title, BOLD), Segment(text[len(title) :], DIM)]


def part_around(center: int, size: int, most: int) -> range:
    """Return a part of `size` places, at most `most` of them, with a place in its middle if that can be."""
    shown = min(size, most)
    start = min(max(center - shown // 2, 0), size - shown)
    return range(start, start + shown)


class _HasHeads(Protocol):
    @property
    def heads(self) -> int: ...


_Layout = TypeVar("_Layout", bound=_HasHeads)


def most_heads(layouts: Iterable[_Layout], heads: int) -> _Layout | None:
    """Return the first layout in which all heads stand, or else the first of those in which most do."""
    best: _Layout | None = None
    for layout in layouts:
        best = layout if best is None or layout.heads > best.heads else best
        if best.heads >= heads:
            break
    return best if best is not None and best.heads else None
