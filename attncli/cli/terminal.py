"""Outputs of views: a terminal, a pipe, or a picture; with their width, height and colours."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attncli.formats.pictures import Drawing
    from attncli.render.palette import Palette

NARROWEST = 40  # cells; a narrower terminal wraps the lines laid out for this
PAGE_WIDTH = 100  # cells in a line of a picture; wider views are wrapped
_ENDLESS = 1_000_000  # cells: where nothing sets a width, nothing is to be wrapped or cut
_LEAST_LINES = 12  # of a screen; smaller ones scroll a little
_WIDEST = 1000  # cells that a variable may say


class Terminal:
    """Output of a view: standard output, or a file.

    Attributes:
        console: prints renderables as they are.
        width: cells in a line; None where the output sets none.
        table_width: cells that a table may take: the same.
        height: lines that fit; None where there is no screen, or where a view may be longer.
    """

    def __init__(self, stream: IO[str], color: str = "auto", width: int | None = None, is_all: bool = False) -> None:
        from rich.console import Console

        is_terminal, variables = stream.isatty(), os.environ if color == "auto" else {}
        forces = color == "always" or bool(variables.get("FORCE_COLOR"))
        forbids = color == "never" or bool(variables.get("NO_COLOR"))
        self._system: Any = None
        if (is_terminal or forces) and not forbids:
            self._system = Console(file=stream, force_terminal=True).color_system
            if forces and self._system in (None, "standard"):
                self._system = "256"  # asked for in so many words where TERM says nothing
        columns, lines = measured_size(stream)
        self.width = self.table_width = width or (columns if is_terminal else None)
        self.height = lines if is_terminal and not is_all and not is_accessible() else None
        is_bold = is_terminal and os.environ.get("TERM") != "dumb" and color != "never"
        self.console = Console(
            file=stream, width=self.width or _ENDLESS, height=100,  # Rich ignores the width of a dumb one without both
            force_terminal=is_bold or self._system is not None, color_system=self._system, no_color=not self._system,
            legacy_windows=False, markup=False, highlight=False, emoji=False,
        )  # fmt: skip
        self._shown = 0

    def palette(self, colormap: str) -> Palette:
        """Return how cells look here; a screen reader gets no colours."""
        from attncli.render.palette import Palette

        tier = self._system if self._system in ("truecolor", "256") else "blocks"
        return Palette("plain" if is_accessible() else tier, colormap)

    def show(self, renderables: Iterable[RenderableType], title: str = "") -> None:
        """Print the parts of a view with a blank line between them, and before them where another view was printed.

        A view's title is for a file that is read by itself; here the command line has it.
        """
        for renderable in renderables:
            if self._shown:
                self.console.print()
            self.console.print(renderable, crop=self.width is not None)
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

        return Palette(self._tier, colormap)

    def show(self, renderables: Iterable[RenderableType], title: str = "") -> None:
        """Draw the parts of a view with a blank line between them, under its title."""
        from attncli.formats.pictures import draw

        self._drawings.append(draw(renderables, self.palette("viridis").shortened(title, self.width), self.width))

    def written(self, name: str) -> Iterator[str]:
        """Yield the document of all views; `name` is the command."""
        from attncli.formats import picture_writer

        return picture_writer(self._chosen)(self._drawings, name)


def measured_size(stream: IO[str]) -> tuple[int, int]:
    """Return the cells in a line of the terminal around a stream, and its lines but for the prompt's.

    Without a terminal and without `COLUMNS` they are 80 and 24.
    """
    from rich.console import Console

    size = Console(file=stream, force_terminal=False).size  # of a dumb one, Rich would say 80 and 25
    return min(max(size.width, NARROWEST), _WIDEST), max(size.height, _LEAST_LINES) - 1


def is_accessible() -> bool:
    """Return whether output is for a screen reader: `ACCESSIBLE` is set."""
    return os.environ.get("ACCESSIBLE", "0") not in ("", "0")
