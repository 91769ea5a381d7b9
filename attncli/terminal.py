"""Streams, their encodings, widths and colours: the only place that makes a Console or touches sys.stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from attncli.tokens import visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from attncli.render.palette import Palette

NARROWEST = 40  # cells; a narrower terminal wraps what was laid out for this

# Rich fits lines to the console; where nothing sets a width, nothing is to be wrapped or cut.
_ENDLESS = 1_000_000


def is_piped_in() -> bool:
    """Whether standard input is something other than a person at a terminal."""
    return sys.stdin is not None and not sys.stdin.isatty()


def stdin_bytes() -> IO[bytes]:
    """Return standard input, undecoded."""
    return sys.stdin.buffer


def complain(message: str) -> None:
    """Write one line to stderr, harmless whatever it quotes."""
    with suppress(OSError):
        sys.stderr.write(f"attn: {visible(message)}\n")
        sys.stderr.flush()


class Terminal:
    """Where a view goes: standard output, or a file.

    Attributes:
        width: cells in a line; None where the output sets none.
    """

    def __init__(self, stream: IO[str], color: str = "auto", width: int | None = None) -> None:
        self.stream = stream
        is_terminal = stream.isatty()
        wants_color = color == "always" or (color == "auto" and bool(os.environ.get("FORCE_COLOR")))
        forbids_color = color == "never" or (color == "auto" and bool(os.environ.get("NO_COLOR")))
        self._system = None if forbids_color else _color_system(stream, is_terminal, wants_color)
        self._styled = self._system is not None or (
            is_terminal and os.environ.get("TERM") != "dumb" and color != "never"
        )
        self.width = width or (max(_measured_width(stream), NARROWEST) if is_terminal else None)

    def palette(self, colormap: str) -> Palette:
        """Return how cells look here."""
        from attncli.render.palette import Palette

        encoding = (getattr(self.stream, "encoding", None) or "utf-8").lower()
        tier = self._system if self._system in ("truecolor", "256") else _plain_tier(encoding)
        return Palette(tier, encoding, colormap)

    def show(self, renderables: Iterable[RenderableType]) -> None:
        """Print the parts of a view with a blank line between them."""
        console = self._console()
        for number, renderable in enumerate(renderables):
            if number:
                console.print()
            console.print(renderable)

    def _console(self) -> Console:
        from rich.console import Console

        return Console(
            file=self.stream,
            width=self.width or _ENDLESS,
            height=100,  # Rich ignores the width of a dumb terminal unless the height is set too
            force_terminal=self._styled,
            color_system=self._system,  # type: ignore[arg-type]
            no_color=self._system is None,
            legacy_windows=False,
            markup=False,
            highlight=False,
            emoji=False,
        )


@contextmanager
def output(path: Path | None, is_stream: bool) -> Iterator[IO[str]]:
    """Give the stream that data goes to: standard output, or a file that appears when it is whole.

    Args:
        path: the file; None is standard output.
        is_stream: whether the file grows by whole lines, in `path.part`, as the data comes.
    """
    if path is None:
        # Whatever the encoding lacks is written as an escape; a lone character must not end the program.
        reconfigure = getattr(sys.stdout, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
        yield sys.stdout
        sys.stdout.flush()
        return
    from attncli.files import text_aside

    with text_aside(path, ".part" if is_stream else None) as stream:
        yield stream


def write(pieces: Iterable[str], path: Path | None) -> None:
    """Write a document to a file, or to standard output."""
    with output(path, is_stream=False) as stream:
        for piece in pieces:
            stream.write(piece)


def _measured_width(stream: IO[str]) -> int:
    from rich.console import Console

    return Console(file=stream).width


def _color_system(stream: IO[str], is_terminal: bool, is_forced: bool) -> str | None:
    if not (is_terminal or is_forced):
        return None
    from rich.console import Console

    system = Console(file=stream, force_terminal=True).color_system
    if is_forced and system in (None, "standard"):
        return "256"  # asked for in so many words where TERM says nothing
    return system


def _plain_tier(encoding: str) -> str:
    try:
        "░▒▓█".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return "ascii"
    return "blocks"
