"""Outputs of views: a terminal, a pipe, or a picture; with their width, height and colours."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from attncli.formats.pictures import Drawing
    from attncli.render.palette import Palette

NARROWEST = 40  # cells; a narrower terminal wraps the lines laid out for this
PAGE_WIDTH = 100  # cells in a line of a picture; wider views are wrapped

# Rich fits lines to the console; where nothing sets a width, nothing is to be wrapped or cut.
_ENDLESS = 1_000_000
_LEAST_LINES = 12  # of a screen; smaller ones scroll a little
_WIDEST = 1000  # cells that a variable may say


class Terminal:
    """Output of a view: standard output, or a file.

    Attributes:
        width: cells in a line; None where the output sets none.
        table_width: cells that a table may take: the same.
        height: lines that fit; None where there is no screen, or where a view may be longer.

    Args:
        stream: the stream.
        color: `auto`, `always` or `never`.
        width: cells in a line; None leaves it to the stream.
        pages: takes the text of a whole view, in place of fitting it to the screen.
    """

    def __init__(
        self, stream: IO[str], color: str = "auto", width: int | None = None, pages: IO[str] | None = None
    ) -> None:
        self.stream, self._written = stream, pages or stream
        self._shown = 0
        is_terminal = stream.isatty()
        wants_color = color == "always" or (color == "auto" and bool(os.environ.get("FORCE_COLOR")))
        forbids_color = color == "never" or (color == "auto" and bool(os.environ.get("NO_COLOR")))
        self._system = None if forbids_color else _color_system(stream, is_terminal, wants_color)
        self._styled = self._system is not None or (
            is_terminal and os.environ.get("TERM") != "dumb" and color != "never"
        )
        self.width = width or (measured_width(stream) if is_terminal else None)
        self.table_width = self.width
        self.height = _measured_height(stream) if is_terminal and pages is None else None

    def palette(self, colormap: str) -> Palette:
        """Return how cells look here; a screen reader gets no blocks."""
        from attncli.render.palette import Palette

        encoding = (getattr(self.stream, "encoding", None) or "utf-8").lower()
        is_colored = self._system in ("truecolor", "256") and not is_accessible()
        tier = self._system if self._system and is_colored else _plain_tier(encoding)
        return Palette(tier, encoding, colormap)

    def turn(self) -> None:
        """Begin a new screen; the content of the last one scrolls up."""
        lines = os.get_terminal_size(self.stream.fileno()).lines
        self.stream.write("\n" * lines + "\x1b[H\x1b[J")

    def show(self, renderables: Iterable[RenderableType], title: str = "") -> None:
        """Print the parts of a view with a blank line between them, and before them where another view was printed.

        A view's title is for a file that is read by itself; here the command line has it.
        """
        console = _console(
            file=self._written,
            width=self.width or _ENDLESS,
            force_terminal=self._styled,
            color_system=self._system,
            no_color=self._system is None,
        )
        for renderable in renderables:
            if self._shown:
                console.print()
            console.print(renderable, crop=self.width is not None)
            self._shown += 1


class PictureFile:
    """Output of a view to a picture, independent of the user's terminal.

    Attributes:
        width: cells in a line.
        height: None, as a picture is as high as its content.
        table_width: cells that a table may take; None is as many as it needs.
    """

    height = None

    def __init__(self, chosen: str, color: str = "auto", width: int | None = None) -> None:
        self._chosen = chosen
        self._tier = "blocks" if chosen == "md" or color == "never" else "truecolor"
        self.width = width or PAGE_WIDTH
        self.table_width = width
        self._drawings: list[Drawing] = []

    def palette(self, colormap: str) -> Palette:
        """Return how cells look here."""
        from attncli.render.palette import Palette

        return Palette(self._tier, colormap=colormap)

    def show(self, renderables: Iterable[RenderableType], title: str = "") -> None:
        """Draw the parts of a view with a blank line between them, under its title."""
        from attncli.formats.pictures import draw

        self._drawings.append(draw(renderables, self.palette("viridis").shortened(title, self.width), self.width))

    def written(self, name: str) -> Iterator[str]:
        """Yield the document of all views; `name` is the command."""
        from attncli.formats import picture_writer

        return picture_writer(self._chosen)(self._drawings, name)

    def figure(self, name: str) -> bytes:
        """Return the same where it is no text."""
        from attncli.formats.figures import figure_of_views, written
        from attncli.formats.pictures import title_of

        return written(figure_of_views(self._drawings), self._chosen, title_of(self._drawings, name))


def _console(**options: Any) -> Console:
    """Return a console that prints its input as it is."""
    from rich.console import Console

    # Rich ignores the width of a dumb terminal unless the height is set too.
    return Console(height=100, legacy_windows=False, markup=False, highlight=False, emoji=False, **options)


def settle_width() -> None:
    """Make sure that a width which the environment sets is one; Rich takes any digits."""
    try:
        width = int(os.environ.pop("COLUMNS", ""))
    except ValueError:
        return
    if width > 0:
        os.environ["COLUMNS"] = str(min(max(width, NARROWEST), _WIDEST))


def measured_width(stream: IO[str]) -> int:
    """Return the cells in a line of the terminal around a stream; 80 without one and without `COLUMNS`."""
    from rich.console import Console

    return max(Console(file=stream, force_terminal=False).width, NARROWEST)  # of a dumb one, Rich would say 80


def _measured_height(stream: IO[str]) -> int:
    """Return the lines of the terminal around a stream, but for the prompt's."""
    from rich.console import Console

    return max(Console(file=stream, force_terminal=False).height, _LEAST_LINES) - 1  # of a dumb one it would say 25


def _color_system(stream: IO[str], is_terminal: bool, is_forced: bool) -> str | None:
    if not (is_terminal or is_forced):
        return None
    from rich.console import Console

    system = Console(file=stream, force_terminal=True).color_system
    if is_forced and system in (None, "standard"):
        return "256"  # asked for in so many words where TERM says nothing
    return system


def is_accessible() -> bool:
    """Return whether output is for a screen reader: `ACCESSIBLE` is set."""
    return os.environ.get("ACCESSIBLE", "0") not in ("", "0")


def _plain_tier(encoding: str) -> str:
    if is_accessible():
        return "ascii"
    try:
        "░▒▓█".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return "ascii"
    return "blocks"
