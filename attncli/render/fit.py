"""What fits a screen, by one rule: blocks in order of rank and room go in, what is shown comes out.

A block may have forms of less and less; of each, the first that there is room for is shown. Maps of heads rank above
the words around them, and their forms are layouts. As long as one of these lets all heads stand on the screen, the
first that does is taken: a cell as wide as it is high; two cells in a character, which are as square; blocks of such
cells, as long as a map has `_PLAIN` of them each way. Where none does, as many heads are drawn as fit in whole maps, if
that is more than one, and else a few, of the largest blocks that let these fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple, Protocol, TypeVar

from rich.cells import cell_len
from rich.segment import Segment

from attncli.render.axes import Axis
from attncli.render.block import Block
from attncli.render.cell_grid import HALF, NARROW, WIDE, GridCell
from attncli.render.heatmap import GAP, size_of
from attncli.render.palette import BOLD, DIM, Palette

LONG = 64  # tokens; of more, a pipe too has no more than a screen, unless all is asked for in so many words
LINES = 40  # of a screen: of one that says nothing, and of every one that has fewer
_PLAIN = 18  # cells each way with which a pattern is still plain: a head that looks at the token before is no diagonal
_LEAST = 8  # with which heads can be told apart at all
_FEW = 4  # heads, rather than larger maps of fewer
_LABELS = (None, 6, 0)  # cells of the longest word beside a row; None leaves it as it is
_Shown = TypeVar("_Shown")


class Bounds(NamedTuple):
    """Room on a screen."""

    lines: int
    width: int


# --- blocks ---


def cost(blocks: Iterable[Block]) -> int:
    """Return how many lines blocks take, with a blank one below each."""
    return sum(len(each.lines) + 1 for each in blocks)


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


def fit_rows(draw: Callable[[int], _Shown], rows: int, lines: int, lines_of: Callable[[_Shown], int]) -> _Shown:
    """Return what is drawn of as many rows as there is room for, which is one at least."""
    while True:
        shown = draw(rows)
        excess = lines_of(shown) - lines
        if excess <= 0 or rows == 1:
            return shown
        rows = max(rows - excess, 1)


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
        if fact and cell_len(palette.fit(longer)) <= width:
            text = longer
    return [Segment(title, BOLD), Segment(palette.fit(text[len(title) :]), DIM)]


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
        if best is None or layout.heads > best.heads:
            best = layout
        if best.heads >= heads:
            break
    return best if best is not None and best.heads else None


class GridLayout(NamedTuple):
    """How the maps of heads are drawn.

    Attributes:
        heads: how many are drawn.
        cell: how large a cell is.
        pool: how many rows and columns it stands for.
        rows: the query axis, with labels as long as there is room for.
        is_short: whether titles are the shorter ones.
        lines: what it takes.
    """

    heads: int
    cell: GridCell
    pool: tuple[int, int]
    rows: Axis
    is_short: bool
    lines: int


@dataclass(frozen=True)
class HeadMapGroup:
    """The maps of some heads, which have the same rows and columns.

    Attributes:
        titles: a longer and a shorter name of each head.
        rows: the query axis.
        columns: the key axis.
        keeps_rows: whether rows were chosen, which then stand for themselves as long as they fit.
        palette: how cells look.
    """

    titles: tuple[Sequence[str], Sequence[str]]
    rows: Axis
    columns: Axis
    keeps_rows: bool
    palette: Palette

    @property
    def heads(self) -> int:
        """How many there are."""
        return len(self.titles[0])

    @property
    def _small(self) -> GridCell:
        return HALF if self.palette.has_halves else NARROW

    def whole(self, bounds: Bounds) -> GridLayout | None:
        """Return how all heads are drawn with a cell for each query and key; None where they do not fit."""
        found = most_heads((self._layout(bounds, cell, (1, 1)) for cell in (WIDE, self._small)), self.heads)
        return found if found and found.heads == self.heads else None

    def best(self, bounds: Bounds) -> GridLayout:
        """Return how as much is drawn as fits: all heads in small blocks, few heads whole, or a few in larger ones."""
        pooled = [layout for pool in self._pools(bounds) if (layout := self._layout(bounds, self._small, pool)).heads]
        every = most_heads(filter(self._is_plain, pooled), self.heads)
        if every is not None and every.heads == self.heads:
            return every
        some = most_heads([self._layout(bounds, self._small, (1, 1)), *pooled[:1]], self.heads)
        if some is not None and some.pool[1] == 1 and some.heads >= min(2, self.heads):
            return some
        with_all_rows = [layout for layout in pooled if layout.pool[0] == 1] if self.keeps_rows else []
        for layouts in (with_all_rows, pooled):
            for few in range(min(_FEW, self.heads), 0, -1):
                if found := [layout for layout in layouts if layout.heads >= few]:
                    return found[0]
        return self.best(Bounds(bounds.lines + 1, bounds.width + 1))  # the words alone fill the screen

    def _is_plain(self, layout: GridLayout) -> bool:
        """Whether maps have enough cells; one that is as square as two halves of a character is a block of two rows."""
        sizes = len(self.rows), len(self.columns)
        rows, columns = (-(-size // step) for size, step in zip(sizes, layout.pool, strict=True))
        return min(rows * self._tall, columns) >= min(_PLAIN, *sizes)

    @property
    def _tall(self) -> int:
        """How many rows the block of a square cell has for each of its columns."""
        return 1 if self._small == HALF else 2

    def _pools(self, bounds: Bounds) -> Iterable[tuple[int, int]]:
        """Return the sizes of blocks, the smallest first."""
        longest = max(len(self.rows), len(self.columns))
        pools: dict[tuple[int, int], None] = {}
        # One map alone is no wider than the room; where rows are kept, it need not be as low.
        first = -(-longest // bounds.width) if len(self.columns) > bounds.width else 1
        for step in range(first, -(-longest // _LEAST) + 1):
            size = -(-longest // step)
            rows, columns = (-(-len(axis) // size) for axis in (self.rows, self.columns))
            if self.keeps_rows:
                pools[1, columns] = None
            pools[rows * self._tall, columns] = None
        return pools

    @cached_property
    def _labelled(self) -> list[Axis]:
        """The query axis with ever shorter labels."""
        return [self.rows if longest is None else self.rows.shortened(longest, self.palette) for longest in _LABELS]

    @cached_property
    def _axes(self) -> Callable[[tuple[int, int]], tuple[Axis, Axis]]:
        return cache(lambda pool: (self.rows.pooled(pool[0]), self.columns.pooled(pool[1])))

    def _layout(self, bounds: Bounds, cell: GridCell, pool: tuple[int, int]) -> GridLayout:
        """Return how most heads are drawn with such cells, with the longest labels that let as many stand there."""
        rows, columns = self._axes(pool)

        def layouts() -> Iterator[GridLayout]:
            for is_short, titles in enumerate(self.titles):
                high, wide = size_of(cell, max(map(cell_len, titles)), rows, columns)
                for labels in self._labelled:
                    per_strip = (bounds.width - labels.width) // (wide + GAP)
                    heads = min(per_strip * ((bounds.lines + 1) // (high + 1)), self.heads)
                    lines = -(-heads // per_strip) * (high + 1) - 1 if per_strip > 0 else 0
                    yield GridLayout(max(heads, 0), cell, pool, labels, bool(is_short), lines)

        return most_heads(layouts(), self.heads) or GridLayout(0, cell, pool, self.rows, False, 0)
