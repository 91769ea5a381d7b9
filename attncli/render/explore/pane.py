"""Content of a pane of the explorer: a block and a title."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.segment import Segment

from attncli.render.block import Block

QUERY, KEY = "▸", "▾"  # beside the row and above the column of the cursor


class CellCursor(NamedTuple):
    """The head and the cell of the cursor."""

    head: int
    query: int
    key: int


class PaneContent(NamedTuple):
    """Content of a pane."""

    block: Block  # no larger than the pane
    title: Sequence[Segment] = ()  # for the pane's border
    steps: tuple[int, int] = (1, 1)  # how far an arrow key moves down and to the right
