"""The streams of the program, which may be closed, full or read by nobody: their encodings, widths and colours.

The only place that makes a Console or touches sys.stdout.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from enum import Enum
from pathlib import Path
from time import perf_counter
from typing import IO, TYPE_CHECKING, Any

from attncli.errors import ExitCode, InputError
from attncli.text import visible
from attncli.trace.tokens import brief

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from attncli.formats.pictures import Drawing
    from attncli.render.palette import Palette

NARROWEST = 40  # cells; a narrower terminal wraps what was laid out for this
PAGE_WIDTH = 100  # cells in a line of a picture; what is wider goes on below

# Rich fits lines to the console; where nothing sets a width, nothing is to be wrapped or cut.
_ENDLESS = 1_000_000
_LEAST_LINES = 40  # of a screen; who has fewer scrolls a little


def is_piped_in() -> bool:
    """Whether standard input is something other than a person at a terminal."""
    return sys.stdin is not None and not sys.stdin.isatty()


def stdin_bytes() -> IO[bytes]:
    """Return standard input, undecoded.

    Raises:
        InputError: it is closed.
    """
    if sys.stdin is None:
        raise InputError("standard input is closed; give the sentences as arguments or with --file")
    with suppress(OSError):
        # Not the object that Python closes at its end, for which it would wait where a thread is still reading.
        return open(sys.stdin.fileno(), "rb", closefd=False)
    return sys.stdin.buffer


class Stderr(Enum):
    """What stderr may be used for besides errors and notes."""

    ABSENT = "nothing: nobody is looking, or wants to be told"
    TOLD = "a bar; steps are told one by one"
    WATCHED = "a bar, and a line that says what is going on"


def stderr_console() -> Console:
    """Return a console on stderr, for what is gone when the program is."""
    from rich.console import Console

    return Console(stderr=True, markup=False, highlight=False, emoji=False, soft_wrap=True)


def complain(message: str, style: str = "bold red") -> int:
    """Write an error to stderr, harmless whatever it quotes, and however much of it; return how many lines it takes.

    It is one line. A terminal breaks that between words, and shows who is speaking in a style, unless NO_COLOR is set.
    """
    text = visible(brief(message))
    with suppress(OSError):
        written = _wrapped(text, style) if sys.stderr.isatty() else f"attn: {text}\n"
        sys.stderr.write(written)
        sys.stderr.flush()
        return written.count("\n")
    return 0


def _wrapped(text: str, style: str) -> str:
    """Return what a terminal on stderr is sent, as a text: whatever is drawn there takes it above itself."""
    from rich.text import Text

    written = io.StringIO()
    Terminal(sys.stderr, pages=written).show([Text.assemble(("attn:", style), f" {text}")])
    return written.getvalue()


@contextmanager
def listening(hear: Callable[[str, float | None], None], is_detailed: bool = False) -> Iterator[None]:
    """Pass on what the sources log of their work while the block runs.

    Args:
        hear: takes one line, and how much of a download is done, if it is about one; what it quotes may hold anything.
        is_detailed: whether how far a download is counts too.
    """
    import logging  # which most runs spare

    class LogListener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            hear(record.getMessage(), getattr(record, "share", None))

    level = logging.DEBUG if is_detailed else logging.INFO
    logger = logging.getLogger("attncli")
    listener, before = LogListener(level), logger.level
    logger.addHandler(listener)
    logger.setLevel(min(level, before or level))
    try:
        yield
    finally:
        logger.removeHandler(listener)
        logger.setLevel(before)


class Environment:
    """Where a run writes, and how much it says on stderr; made once, and passed to whatever writes or says something.

    Args:
        is_quiet: whether errors alone are said.
        is_verbose: whether what the sources do is said too, and when.
    """

    def __init__(self, is_quiet: bool = False, is_verbose: bool = False) -> None:
        self._data = sys.stdout
        self._is_quiet, self._is_verbose = is_quiet, is_verbose
        self._begun = perf_counter()
        self._lines = 0

    def aside(self) -> Environment:
        """Return one that writes its data to stderr: standard output belongs to a program that is run."""
        other = Environment(self._is_quiet, self._is_verbose)
        other._data = sys.stderr
        return other

    @contextmanager
    def running(self) -> Iterator[None]:
        """Keep standard output for data: what a library prints, or code that a checkpoint brings, goes to stderr."""
        with redirect_stdout(sys.stderr):
            if self._is_quiet:
                import logging

                logging.getLogger("attncli").setLevel(logging.ERROR)
            if not self._is_verbose:
                yield
                return
            with listening(lambda message, _: self.tell(message)):
                yield
            self.tell("done")

    def note(self, message: str) -> None:
        """Say something that is no error, a warning or what was left out, unless `--quiet` is given."""
        if not self._is_quiet:
            self._lines += complain(message, "bold")

    @property
    def lines_said(self) -> int:
        """How many lines notes have taken of the terminal; none where stderr is a file."""
        return self._lines if sys.stderr is not None and sys.stderr.isatty() else 0

    def tell(self, message: str) -> None:
        """Say what is done, and when, if `--verbose` is given."""
        if self._is_verbose:
            complain(f"{perf_counter() - self._begun:.2f} s: {message}", "bold")

    def use_of_stderr(self) -> Stderr:
        """Return what stderr may be used for: nothing, unless it is a terminal that can take back what it shows."""
        if self._is_quiet or sys.stderr is None or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
            return Stderr.ABSENT
        return Stderr.TOLD if self._is_verbose else Stderr.WATCHED

    def is_dialogue(self) -> bool:
        """Whether a person reads standard output as it comes, and types, on a terminal that moves its cursor."""
        from importlib.util import find_spec

        can_move = os.environ.get("TERM") != "dumb" and find_spec("termios") is not None
        return can_move and self.is_terminal(None) and sys.stdin is not None and sys.stdin.isatty()

    def lacks_screen(self) -> str:
        """Return why nobody can look at a screen here that changes as they type; empty where somebody can."""
        streams = {"standard input": sys.stdin, "standard output": self._data, "standard error": sys.stderr}
        if other := next((name for name, one in streams.items() if one is None or not one.isatty()), None):
            return f"{other} is not one"
        if os.environ.get("TERM") == "dumb":
            return "TERM says that this one is dumb"
        if os.environ.get("ACCESSIBLE", "0") not in ("", "0"):
            return "ACCESSIBLE says that it is read aloud"
        return ""

    def is_terminal(self, path: Path | None) -> bool:
        """Whether what is written to a file, or to standard output where it is None, is seen as it comes."""
        return path is None and self._data is not None and self._data.isatty()

    @contextmanager
    def output(self, path: Path | None, is_stream: bool = False, encoding: str | None = None) -> Iterator[IO[str]]:
        """Give the stream that data goes to: standard output, or a file that appears when it is whole.

        Args:
            path: the file; None is standard output.
            is_stream: whether the file grows by whole lines, in `path.part`, as the data comes.
            encoding: that standard output has to have; None leaves it as it is. A file is UTF-8.
        """
        if path is None or str(path) == "/dev/stdout":
            # Whatever the encoding lacks is written as an escape; a lone character must not end the program.
            reconfigure = getattr(self._data, "reconfigure", None)
            if reconfigure is not None:
                reconfigure(errors="backslashreplace", encoding=encoding)
            yield self._data
            self._data.flush()
            return
        from attncli.files import atomic_write_text

        with atomic_write_text(path, ".part" if is_stream else None) as stream:
            yield stream

    @contextmanager
    def binary(self, path: Path) -> Iterator[IO[bytes]]:
        """Give a file of bytes that appears when it is whole."""
        from attncli.files import atomic_write

        with atomic_write(path) as aside, open(aside, "wb") as file:
            yield file

    def write(self, pieces: Iterable[str], path: Path | None = None) -> None:
        """Write a document to a file, or to standard output."""
        with self.output(path) as stream:
            for piece in pieces:
                stream.write(piece)

    @contextmanager
    def canvas(
        self,
        name: str,
        chosen: str = "table",
        path: Path | None = None,
        color: str | None = None,
        width: int | None = None,
        is_all: bool = False,
    ) -> Iterator[Terminal | PictureFile]:
        """Give what views are drawn on; a picture is written once all of them are.

        Where all is wanted, a person at a terminal reads it in their pager.

        Args:
            name: of the command, for the title of a picture.
            chosen: one of `formats.DRAWN`.
            path: the file that it goes to; None is standard output.
            color: `auto`, `always` or `never`; None is `auto`.
            width: cells in a line; None leaves it to the output.
            is_all: whether all is wanted, more than a screen has room for too.
        """
        if chosen == "table":
            with self.output(path) as stream:
                if is_all and self.is_terminal(path) and stream is not sys.stderr:
                    pages = io.StringIO()
                    yield Terminal(stream, color or "auto", width, pages)
                    _page(pages.getvalue(), stream)
                else:
                    yield Terminal(stream, color or "auto", width, stream if is_all else None)
            return
        from attncli.formats import FIGURES

        page = PictureFile(chosen, color or "auto", width)
        if path is not None and chosen in FIGURES:
            with self.binary(path) as file:
                yield page
                file.write(page.figure(name))
            return
        with self.output(path, encoding="utf-8") as stream:
            yield page
            for piece in page.written(name):
                stream.write(piece)


def _page(text: str, stream: IO[str]) -> None:
    """Show text in the user's pager, which is less where `PAGER` says nothing; print it where there is none."""
    from subprocess import run

    command, stays = os.environ.get("PAGER", "less"), 127  # what a shell ends with that finds no such program
    # -F: what fits a screen is only printed; -R: colours; -X: what was read stays on the screen.
    variables = {"LESS": "FRX"} | os.environ
    if not command or run(command, shell=True, input=text.encode(errors="replace"), env=variables).returncode == stays:
        stream.write(text)


class Terminal:
    """Where a view goes: standard output, or a file.

    Attributes:
        width: cells in a line; None where the output sets none.
        table_width: cells that a table may take: the same.
        height: lines that a view has room for; None where nobody looks at a screen, or wants more than one.

    Args:
        stream: what it is.
        color: `auto`, `always` or `never`.
        width: cells in a line; None leaves it to the stream.
        pages: where all of a view goes, instead of as much as a screen has room for.
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
            is_terminal and os.environ.get("TERM") != "dumb" and color != "never" and not _is_legacy()
        )
        self.width = width or (measured_width(stream) if is_terminal else None)
        self.table_width = self.width
        self.height = measured_height(stream) if is_terminal and pages is None else None

    def palette(self, colormap: str) -> Palette:
        """Return how cells look here."""
        from attncli.render.palette import Palette

        encoding = (getattr(self.stream, "encoding", None) or "utf-8").lower()
        tier = self._system if self._system in ("truecolor", "256") else _plain_tier(encoding)
        return Palette(tier, encoding, colormap)

    def turn(self) -> None:
        """Begin a new screen; what stood on the last one goes up, where it can be scrolled back to."""
        lines = os.get_terminal_size(self.stream.fileno()).lines
        self.stream.write("\n" * lines + "\x1b[H\x1b[J")

    def show(self, renderables: Iterable[RenderableType], title: str = "") -> None:
        """Print the parts of a view with a blank line between them, and before them where another view stands.

        A view's title is for a file that is read by itself; here the command line says it.
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
    """Where a view goes that is a picture for somebody else: a terminal of its own, whatever the user's is like.

    Attributes:
        width: cells in a line.
        height: none: a picture is as high as what it shows.
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
        """Yield the document of all views; `name` says what drew them."""
        from attncli.formats import picture_writer

        return picture_writer(self._chosen)(self._drawings, name)

    def figure(self, name: str) -> bytes:
        """Return the same where it is no text."""
        from attncli.formats.figures import figure_of_views, written
        from attncli.formats.pictures import title_of

        return written(figure_of_views(self._drawings), self._chosen, title_of(self._drawings, name))


def _console(**how: Any) -> Console:
    """Return a console that prints what it is given, as it is given."""
    from rich.console import Console

    # Rich ignores the width of a dumb terminal unless the height is set too.
    return Console(height=100, legacy_windows=False, markup=False, highlight=False, emoji=False, **how)


def measured_width(stream: IO[str]) -> int:
    """Return the cells in a line of the terminal around a stream; 80 where there is none and `COLUMNS` is not set."""
    from rich.console import Console

    return max(Console(file=stream, force_terminal=False).width, NARROWEST)  # of a dumb one, Rich would say 80


def measured_height(stream: IO[str]) -> int:
    """Return the lines of the terminal around a stream, or those of a usual screen if it has fewer; but the prompt's.

    `LINES` is what a shell says of them where the terminal does not.
    """
    from rich.console import Console

    return max(Console(file=stream, force_terminal=False).height, _LEAST_LINES) - 1  # of a dumb one it would say 25


def _color_system(stream: IO[str], is_terminal: bool, is_forced: bool) -> str | None:
    if not (is_terminal or is_forced):
        return None
    from rich.console import Console

    if is_terminal and _is_legacy():
        return None
    system = Console(file=stream, force_terminal=True).color_system
    if is_forced and system in (None, "standard"):
        return "256"  # asked for in so many words where TERM says nothing
    return system


def _is_legacy() -> bool:
    """Return whether the console is one of Windows that writes escape sequences out."""
    from rich.console import detect_legacy_windows

    return detect_legacy_windows()


def _plain_tier(encoding: str) -> str:
    try:
        "░▒▓█".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return "ascii"
    return "blocks"


_CLOSED = {0: os.O_RDONLY, 1: os.O_RDONLY, 2: os.O_WRONLY}  # how nothing is opened in a closed stream's place
_WIDEST = 1000  # cells


class _Data(io.FileIO):
    """Standard output; the first thing that cannot be written ends the program."""

    def write(self, data: Any) -> Any:
        """Write, as `io.RawIOBase.write`.

        Raises:
            InputError: the disk is full, or the stream is closed.
            SystemExit: nobody reads any more, which is how `head` says that it has enough.
        """
        try:
            return super().write(data)
        except OSError as error:
            # What is left in the buffers is flushed again when Python ends, and would be complained of again.
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.fileno())
            os.close(nothing)
            if isinstance(error, BrokenPipeError):
                raise SystemExit(ExitCode.CLOSED_PIPE) from None
            reason = "it is closed" if error.errno == errno.EBADF else error.strerror
            raise InputError(f"cannot write to standard output: {reason}") from None


def settle_streams() -> None:
    """Make the standard streams of this process safe to use, whichever of them are open."""
    for descriptor, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        if stream is None:  # else the next file that is opened would take its place, and whatever is printed
            nothing = os.open(os.devnull, _CLOSED[descriptor])
            if nothing != descriptor:
                os.dup2(nothing, descriptor)
                os.close(nothing)
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "utf-8", "backslashreplace", write_through=True)
    started_with: Any = sys.__stdout__
    if sys.stdout is None:
        sys.stdout = _text("utf-8")
    elif sys.stdout is started_with and _is_file(started_with):
        sys.stdout = _text(started_with.encoding, bool(started_with.line_buffering))


def settle_width() -> None:
    """Make sure that a width which the environment sets is one; Rich takes any digits."""
    try:
        width = int(os.environ.pop("COLUMNS", ""))
    except ValueError:
        return
    if width > 0:
        os.environ["COLUMNS"] = str(min(max(width, NARROWEST), _WIDEST))


def _is_file(stream: Any) -> bool:
    """Return whether a stream is bytes in the end; a console of Windows is not."""
    return type(getattr(stream.buffer, "raw", stream.buffer)) is io.FileIO


def _text(encoding: str, line_buffering: bool = False) -> io.TextIOWrapper:
    # Whatever the encoding lacks is written as an escape; a lone character must not end the program.
    data = io.BufferedWriter(_Data(1, "w", closefd=False))
    return io.TextIOWrapper(data, encoding, errors="backslashreplace", line_buffering=line_buffering)
