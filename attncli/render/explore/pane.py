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
from attncli.render.fit import Bounds
from attncli.render.palette import DIM, Palette

Place = TypeVar("Place")

QUERY, KEY = "▸", "▾"  # beside the row and above the column of the cell under the cursor
ALONE = "~"  # of a token that the held text does not have
INSET = 2  # cells between the side of a frame and what is in it, that side included
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


def focus(palette: Palette) -> Style:
    """Return the style of what keys are for: a colour, or without colours the reverse."""
    return Style(color="cyan", bold=True) if palette.has_color else Style(reverse=True)


def inside(room: Bounds, has_sides: bool) -> Bounds:
    """Return the room for a title and what it is of, in a frame."""
    return Bounds(max(room.lines - 1, 1), max(room.width - 2 * INSET, 1)) if has_sides else room


def framed(block: Block, room: Bounds, palette: Palette, has_focus: bool, has_sides: bool) -> Block:
    """Return a block under its first line, the title, which a rule goes on with; with sides it is in a box.

    The block is no larger than there is room `inside`.
    The frame that keys are for is in colour, or where there is none, its title is reversed.
    """
    rule, side = "─", "│"
    style = focus(palette) if has_focus and palette.has_color else DIM
    title = list(block.lines[0]) if block.lines else []
    if has_focus and title:
        title[0] = Segment(title[0].text, (title[0].style or Style()) + focus(palette))
    used = Segment.get_line_length(title)
    if not has_sides:
        rest = f" {rule * (room.width - used - 1)}" if used < room.width else ""
        return Block([[*title, Segment(rest, style)], *block.lines[1 : room.lines]], room.width)
    width = room.width - 2 * INSET
    corners = "╭╮╰╯"
    gap = " " if title else rule
    top = [Segment(f"{corners[0]}{gap}", style), *title, Segment(gap + rule * (width - used) + corners[1], style)]
    edges = Segment(f"{side} ", style), Segment(f" {side}", style)
    lines = [*block.lines[1:], *[[]] * room.lines][: room.lines - 2]
    blanks = (Segment(" " * (width - Segment.get_line_length(list(line)))) for line in lines)
    body = [[edges[0], *line, blank, edges[1]] for line, blank in zip(lines, blanks, strict=True)]
    bottom = Segment(corners[2] + rule * (room.width - 2) + corners[3], style)
    return Block([top, *body, [bottom]], room.width)


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
