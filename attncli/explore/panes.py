"""Widgets of the explorer: panes that show a `PaneContent`, and lines to type in."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, zip_longest
from typing import Any

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.color import Color
from textual.filter import Monochrome
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Footer, Input, Label

from attncli.explore.computation import reason
from attncli.render.block import Block, Bounds, crop
from attncli.render.explore.pane import PaneContent
from attncli.render.palette import DIM
from attncli.text import visible

_PLAIN = Style()
_EMPTY = Strip([])
_EDITING = {each.key: each.action for each in Binding.make_bindings(Input.BINDINGS) if each.key != "ctrl+c"}


class Pane(Widget):
    """A widget that draws its content again where the inputs of the drawing function or the size have changed."""

    ALLOW_SELECT = False

    class Resized(Message):
        """The pane has another size."""

    def __init__(self, name: str, can_focus: bool = False) -> None:
        super().__init__(id=name)
        self.can_focus = can_focus
        self.content = PaneContent(Block([], 0))
        self._drawn_of: object = None
        self._strips: list[Strip] = []

    def draw(self, function: Callable[..., PaneContent], *inputs: object, is_late: bool = False) -> None:
        """Show what a function returns for some inputs and the room of the pane; in grey if it `is_late`."""
        room = Bounds(self.size.height, self.size.width)
        if not self.display or not self.size.area or self._drawn_of == (function, inputs, room, is_late):
            return
        self._drawn_of = function, inputs, room, is_late
        try:
            self.content = function(*inputs, room)
        except Exception as error:  # the other panes, and the text that was typed, are not lost
            self.content = PaneContent(crop([[Segment(reason(error))]], room))
        self.border_title = Text.assemble(*((text, style or "") for text, style, _ in self.content.title))
        dim = DIM if is_late else _PLAIN
        strips = [
            Strip([Segment(text, (style or _PLAIN) + dim) for text, style, _ in line])
            for line in self.content.block.lines
        ]
        if is_late:
            strips = [strip.apply_filter(Monochrome(), Color(0, 0, 0)) for strip in strips]
        lines = enumerate(zip_longest(self._strips, strips, fillvalue=_EMPTY))
        changed = [Region(0, y, self.size.width, 1) for y, (old, new) in lines if old != new]
        self._strips = strips
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        """Return a line of the content, as wide as the pane."""
        strip = self._strips[y] if y < len(self._strips) else _EMPTY
        return strip.adjust_cell_length(self.size.width, _PLAIN)

    def on_resize(self) -> None:
        """Ask for another drawing."""
        self.post_message(self.Resized())


class LineInput(Input):
    """A line to type in."""

    def __init__(self, name: str, value: str = "") -> None:
        super().__init__(one_line(value), id=name, select_on_focus=False, compact=True)
        self.cursor_blink = False

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """Return whether a key edits the line, so that it is no command."""
        return super().check_consume_key(key, character) or key in _EDITING or key == "slash"  # no name of Unicode

    async def _on_key(self, event: events.Key) -> None:
        # A binding would run after the letters that were typed behind it.
        if event.key in _EDITING:
            event.stop()
            event.prevent_default()
            await self.run_action(_EDITING[event.key])

    def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        self.replace(one_line(event.text), *self.selection)


def one_line(text: str) -> str:
    """Return a text that can be typed: line ends and tabs are blanks, other invisible characters are left out."""
    return "".join(filter(None, map(_typed, text.replace("\r\n", "\n"))))


def _typed(character: str) -> str:
    if visible(character) == character:
        return character
    return " " if character.isspace() else ""


class KeyFooter(Footer):
    """Line of keys, which ends in `…` where the terminal is too narrow for all of them."""

    def compose(self) -> ComposeResult:
        """Yield the keys that fit."""
        keys: list[Any] = list(super().compose())
        ends = [*accumulate(cell_len(f"{key.key_display} {key.description} ") for key in keys)]
        if not keys or ends[-1] - 1 <= self.app.size.width:
            yield from keys
            return
        shown = [key for key, end in zip(keys, ends, strict=True) if end < self.app.size.width]
        self.styles.grid_size_columns = len(shown) + 1
        yield from (*shown, Label("…"))

    def on_resize(self) -> None:
        """Choose the keys again."""
        self.refresh(recompose=True)
