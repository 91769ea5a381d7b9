"""A pane that is drawn: its block, which fits its room, and what lies at each place of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Generic, NamedTuple, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.color import Color, blend_rgb
from rich.color_triplet import ColorTriplet
from rich.segment import Segment
from rich.style import Style

from attncli.render.block import Block, cell
from attncli.render.palette import DIM

Place = TypeVar("Place")

QUERY, KEY = "▸", "▾"  # beside the row and above the column of the cell under the cursor
ALONE = "~"  # of a token that the held text does not have
_TOWARDS_GREY = 0.6
_GREY = ColorTriplet(128, 128, 128)


class PaneContent(NamedTuple, Generic[Place]):
    """What a pane shows, and what lies at a line and a column of it; None is nothing."""

    block: Block
    at: Callable[[int, int], Place | None]


def pad(text: str, width: int, style: Style | None = None, align: str = "right") -> Segment:
    """Return text in exactly `width` cells: padded, or cut."""
    if cell_len(text) > width:
        text = set_cell_size(text, width)
    return cell(text, width, style, align)


def faded(block: Block) -> Block:
    """Return a block that is no longer true: its colours go towards grey, and what has none is dim."""
    return block._replace(lines=[[Segment(text, _faded(style)) for text, style, _ in line] for line in block.lines])


@cache
def _faded(style: Style | None) -> Style:
    if style is None or (style.bgcolor is None and style.color is None):
        return DIM if style is None else style + DIM
    return style + Style.from_color(_greyed(style.color), _greyed(style.bgcolor))


def _greyed(color: Color | None) -> Color | None:
    if color is None:
        return None
    return Color.from_triplet(blend_rgb(color.get_truecolor(), _GREY, _TOWARDS_GREY))
