"""Content of a pane of the explorer: a title, a block, and the value at each place of the block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style

from attncli.render.block import Block, cell

Place = TypeVar("Place")

QUERY, KEY = "▸", "▾"  # beside the row and above the column of the cursor


class CellCursor(NamedTuple):
    """The head and the cell of the cursor."""

    head: int
    query: int
    key: int


class PaneContent(NamedTuple, Generic[Place]):
    """Content of a pane."""

    block: Block  # no larger than the pane
    at: Callable[[int, int], Place | None] = lambda *_: None  # the value at a line and a column; None without one
    title: Sequence[Segment] = ()  # for the pane's border
    steps: tuple[int, int] = (1, 1)  # rows and columns that a cell of the block stands for


def pad(text: str, width: int, style: Style | None = None, align: str = "right") -> Segment:
    """Return text in exactly `width` cells: padded, or cut."""
    if cell_len(text) > width:
        text = set_cell_size(text, width)
    return cell(text, width, style, align)
