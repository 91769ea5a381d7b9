"""Widgets of Textual that show blocks, and lines to type in. They know nothing of attention."""

from __future__ import annotations

from itertools import zip_longest

from rich.highlighter import Highlighter
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from attncli.render.block import Block
from attncli.text import visible

_PLAIN = Style()
_UNDERLINE = Style(bold=True, underline=True)
_EMPTY = Strip([])
_EDITING = {binding.key: binding.action for binding in Binding.make_bindings(Input.BINDINGS) if binding.key != "enter"}


class BlockWidget(Widget):
    """A rectangle that shows a block, and says where it was clicked and how the wheel was turned over it."""

    ALLOW_SELECT = False

    class Resized(Message):
        """It has another size."""

    class Clicked(Message):
        """A place was clicked."""

        def __init__(self, pane: BlockWidget, x: int, y: int) -> None:
            super().__init__()
            self.pane, self.x, self.y = pane, x, y

    class Turned(Message):
        """The wheel was turned, down (1) or up (-1), with Ctrl held down or sideways too."""

        def __init__(self, pane: BlockWidget, by: int, is_zoom: bool, is_sideways: bool) -> None:
            super().__init__()
            self.pane, self.by, self.is_zoom, self.is_sideways = pane, by, is_zoom, is_sideways

    def __init__(self, name: str) -> None:
        super().__init__(id=name)
        self._strips: list[Strip] = []
        self.drawn_for = Size(0, 0)

    def show(self, block: Block) -> None:
        """Show a block in place of the last one; lines that are as they were are not drawn again."""
        self.drawn_for = self.size
        strips = [Strip([Segment(text, style or _PLAIN) for text, style, _ in line]) for line in block.lines]
        lines = enumerate(zip_longest(self._strips, strips, fillvalue=_EMPTY))
        changed = [Region(0, y, self.size.width, 1) for y, (old, new) in lines if old != new]
        self._strips = strips
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        """Return a line of the block, as wide as the pane."""
        strip = self._strips[y] if y < len(self._strips) else _EMPTY
        return strip.adjust_cell_length(self.size.width, _PLAIN)

    def on_resize(self) -> None:
        """Say that there is another room to draw in."""
        self.post_message(self.Resized())

    def on_click(self, event: events.Click) -> None:
        """Say which place was clicked."""
        self.post_message(self.Clicked(self, event.x, event.y))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Say that the wheel was turned."""
        self._turn(event, 1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Say that the wheel was turned."""
        self._turn(event, -1)

    def _turn(self, event: events.MouseEvent, by: int) -> None:
        event.stop()
        self.post_message(self.Turned(self, by, event.ctrl, event.shift))


class _Pointing(Highlighter):
    """Underlines some characters."""

    places = range(0)

    def highlight(self, text: Text) -> None:
        """Underline them in a text."""
        text.stylize(_UNDERLINE, self.places.start, self.places.stop)


class LineInput(Input):
    """A line to type in."""

    def __init__(self, name: str, value: str = "") -> None:
        self._pointing = _Pointing()
        super().__init__(one_line(value), highlighter=self._pointing, id=name, select_on_focus=False, compact=True)
        self.cursor_blink = False

    def point(self, places: range) -> None:
        """Underline these characters and no others."""
        if places != self._pointing.places:
            self._pointing.places = places
            self.refresh()

    async def takes(self, event: events.Key | events.Paste) -> bool:
        """Edit at once, and return whether the event is one that edits: a text that is pasted becomes one line."""
        if isinstance(event, events.Paste):
            self.replace(one_line(event.text), *self.selection)
        elif event.is_printable and event.character is not None:
            self.replace(event.character, *self.selection)
        elif event.key in _EDITING:
            await self.run_action(_EDITING[event.key])
        else:
            return False
        return True


def one_line(text: str) -> str:
    """Return a text as it can be typed: ends of lines and tabs are blanks, other characters that are not seen go."""
    return "".join(filter(None, map(_typed, text.replace("\r\n", "\n"))))


def _typed(character: str) -> str:
    if visible(character) == character:
        return character
    return " " if character.isspace() else ""
