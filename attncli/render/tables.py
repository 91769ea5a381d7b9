"""Tables: columns that fit or fold, and words that go on in the next line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import NamedTuple

from rich.cells import cell_len
from rich.style import Style

from attncli.render.block import Block, grid
from attncli.render.palette import DIM

Cell = tuple[str, Style | None]


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        title: what stands above it.
        texts: its cells from the top.
        style: of all of them, or of each.
        align: `<` or `>`.
        title_style: of the title.
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


def table(columns: Sequence[Column], width: int | None) -> Block:
    """Return columns with their titles; those that do not fit follow below, beside the first one again."""
    rows = list(zip(*(column.cells for column in columns), strict=True))
    return grid(rows, "".join(column.align for column in columns), width)


def wrap_cells(rows: Iterable[Sequence[Cell]], room: int) -> list[list[Cell]]:
    """Return rows whose last cell, where it is longer than `room`, goes on in rows of its own."""
    lines: list[list[Cell]] = []
    for *before, (text, style) in rows:
        first, *more = wrap(text, max(room, 1))
        lines.append([*before, (first, style)])
        lines += [[*[("", None)] * len(before), (part, style)] for part in more]
    return lines


def width_of(columns: Iterable[Column]) -> int:
    """Return how many cells columns take beside each other, with a gap behind each of them."""
    return sum(column.width + 2 for column in columns)
