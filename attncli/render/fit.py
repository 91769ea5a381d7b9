"""What fits a screen, by one rule: blocks in order of rank and room go in, what is shown comes out.

A block may have forms of less and less; of each, the first that there is room for is shown. Maps of heads rank above
the words around them, and their forms are layouts (`layer_group.py`), of which the first is taken that lets all heads
stand on the screen, or else most of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from rich.cells import cell_len
from rich.console import RenderableType
from rich.segment import Segment

from attncli.render.block import Block, in_words
from attncli.render.palette import BOLD, DIM, Palette

LONG = 64  # tokens; of more, a pipe too has no more than a screen, unless all is asked for in so many words
LINES = 40  # of a screen that says nothing
_Shown = TypeVar("_Shown")


class Bounds(NamedTuple):
    """Room on a screen."""

    lines: int
    width: int


# --- blocks ---


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


def fit(ranked: Iterable[Sequence[Block]], lines: int) -> list[list[Block]]:
    """Return of each block, those of a higher rank first, the first of its forms that there is room for, if any is.

    A blank line belongs below each.
    """
    shown: list[list[Block]] = []
    for forms in ranked:
        shown.append([form for form in forms if cost([form]) <= lines][:1])
        lines -= cost(shown[-1])
    return shown


def fit_with_note(
    draw: Callable[[int], tuple[_Shown, str]], lines: int, lines_of: Callable[[str], int]
) -> tuple[_Shown, str]:
    """Return what is drawn above a note that says what there was no room for, and the note; it takes lines too."""
    reserved, (shown, note) = 0, draw(lines)
    while lines_of(note) > reserved:
        reserved = lines_of(note)
        shown, note = draw(lines - reserved)
    return shown, note


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
    """Return a part of `size` places, `most` of them at the most, in the middle of which one stands if that can be."""
    shown = min(size, most)
    start = min(max(center - shown // 2, 0), size - shown)
    return range(start, start + shown)


# --- maps of heads ---


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
