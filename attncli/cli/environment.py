"""Outputs of the program: terminal, pipe or picture with its size and colours, streams, and progress on stderr.

Streams may be full or without a reader. No other module uses sys.stdout.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout, suppress
from pathlib import Path
from time import perf_counter
from typing import IO, TYPE_CHECKING, Any, Self, TypeVar

from attncli.errors import ExitCode, InputError
from attncli.signals import OnInterrupt
from attncli.text import brief, visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress

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
        from attncli.render.block import shortened

        self._drawings.append(draw(renderables, shortened(title, self.width), self.width))

    def written(self, name: str) -> Iterator[str]:
        """Yield the document of all views; `name` is the command."""
        from attncli.formats.pictures import WRITERS

        return WRITERS[self._chosen](self._drawings, name)


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


# --- streams -----------------------------------------------------------------------------------------------

_Resource = TypeVar("_Resource")


def stdin_bytes() -> IO[bytes]:
    """Return standard input, undecoded."""
    with suppress(OSError):
        # Not the object that Python closes at its end, for which it would wait where a thread is still reading.
        return open(sys.stdin.fileno(), "rb", closefd=False)
    return sys.stdin.buffer


def stderr_console() -> Console:
    """Return a console on stderr, for output that is removed at the end."""
    from rich.console import Console

    return Console(stderr=True, markup=False, highlight=False, emoji=False, soft_wrap=True)


def print_error(message: str, style: str = "bold red") -> int:
    """Write an error to stderr, safe to print and of any length; return how many lines it takes.

    It is one line. A terminal breaks that between words, and shows `attn` in a style, unless NO_COLOR is set.
    """
    text = visible(brief(message))
    written = f"attn: {text}\n"
    with suppress(OSError):
        if sys.stderr.isatty():
            from rich.text import Text

            console = Terminal(sys.stderr).console
            with console.capture() as captured:
                console.print(Text.assemble(("attn:", style), f" {text}"))
            written = captured.get()  # a text: a bar on stderr takes it above itself
        sys.stderr.write(written)
        sys.stderr.flush()
    return written.count("\n")


@contextmanager
def listening(hear: Callable[[str, float | None], None], is_detailed: bool = False) -> Iterator[None]:
    """Pass each log of the sources, and the share of a download that is done, to a function while the block runs.

    `is_detailed` tells whether the progress of a download counts too.
    """
    import logging  # which most runs spare

    class LogListener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            hear(record.getMessage(), getattr(record, "share", None))

    logger, listener = logging.getLogger("attncli"), LogListener(logging.DEBUG if is_detailed else logging.INFO)
    before = logger.level
    logger.addHandler(listener)
    logger.setLevel(min(listener.level, before or listener.level))
    try:
        yield
    finally:
        logger.removeHandler(listener)
        logger.setLevel(before)


class Environment:
    """Streams and verbosity of a run; as a context, the run itself.

    Within, standard output is for data: output of libraries, or of code from a checkpoint, goes to stderr. Entered
    contexts are closed at the end. A quiet run prints errors alone, a verbose one the steps of the sources too.
    """

    def __init__(self, is_quiet: bool = False, is_verbose: bool = False, data: IO[str] | None = None) -> None:
        self._data = sys.stdout if data is None else data
        self.is_quiet, self.is_verbose = is_quiet, is_verbose
        self._begun = perf_counter()
        self._lines = 0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.enter(redirect_stdout(sys.stderr))
        if self.is_quiet:
            import logging

            logging.getLogger("attncli").setLevel(logging.ERROR)
        if self.is_verbose:
            self.enter(listening(lambda message, _: self.info(message)))
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        self._stack.__exit__(kind, *error)
        if kind is None:
            self.info("done")

    def enter(self, resource: AbstractContextManager[_Resource]) -> _Resource:
        """Enter a context that ends with the run."""
        return self._stack.enter_context(resource)

    def note(self, *messages: str) -> None:
        """Print notes, such as warnings, unless `--quiet` is on."""
        for message in () if self.is_quiet else messages:
            self._lines += print_error(message, "bold")

    @property
    def noted_lines(self) -> int:
        """Number of terminal lines of notes; 0 where stderr is a file."""
        return self._lines if sys.stderr.isatty() else 0

    def info(self, message: str) -> None:
        """Print a step, and its time, if `--verbose` is on."""
        if self.is_verbose:
            print_error(f"{perf_counter() - self._begun:.2f} s: {message}", "bold")

    def has_live_stderr(self) -> bool:
        """Whether stderr is a terminal that can erase, for a progress bar, and the user wants to see it."""
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not self.is_quiet and not is_accessible()

    def lacks_screen(self) -> str:
        """Return the reason that there is no interactive screen; empty where there is one."""
        streams = {"standard input": sys.stdin, "standard output": self._data, "standard error": sys.stderr}
        if other := next((name for name, stream in streams.items() if not stream.isatty()), None):
            return f"{other} is not one"
        if os.environ.get("TERM") == "dumb":
            return "TERM is dumb"
        return "ACCESSIBLE is set" if is_accessible() else ""

    def is_terminal(self, path: Path | None) -> bool:
        """Whether a file, or standard output where it is None, is a terminal."""
        return path is None and self._data.isatty()

    @contextmanager
    def output(self, path: Path | None, is_stream: bool = False) -> Iterator[IO[str]]:
        """Give the stream that data goes to: standard output, or a file that appears when it is whole.

        With `is_stream` the file grows by whole lines, in `path.part`, as the data comes.
        """
        if path is None or str(path) == "/dev/stdout":
            yield self._data
            self._data.flush()
            return
        from attncli.files import atomic_write_text

        with atomic_write_text(path, ".part" if is_stream else None) as stream:
            yield stream

    def write(self, content: Iterable[str] | bytes, path: Path | None = None) -> None:
        """Write a document to a file, which appears when it is whole, or to standard output."""
        if isinstance(content, bytes) and path is not None:
            from attncli.files import atomic_write

            with atomic_write(path) as temporary:
                temporary.write_bytes(content)
            return
        with self.output(path) as stream:
            stream.writelines([content.decode()] if isinstance(content, bytes) else content)

    @contextmanager
    def open_view(
        self, name: str, chosen: str, path: Path | None, color: str | None, width: int | None, is_all: bool
    ) -> Iterator[Terminal | PictureFile]:
        """Yield an output for views in one of `formats.DRAWN`; a picture, under a name, is written after all of them.

        With `is_all` it shows everything, beyond the size of a screen; a terminal shows that in a pager.
        """
        if chosen != "table":
            yield (picture := PictureFile(chosen, color or "auto", width))
            self.write(picture.written(name), path)
            return
        with self.output(path) as stream, ExitStack() as stack:
            terminal = Terminal(stream, color or "auto", width, is_all)
            if is_all and self.is_terminal(path) and stream is not sys.stderr:
                os.environ.setdefault("LESS", "FRX")  # a text that fits a screen is only printed, in colours
                stack.enter_context(redirect_stdout(stream))
                stack.enter_context(terminal.console.pager(styles=True))
            yield terminal


class _Data(io.FileIO):
    """Standard output; the first failed write ends the program."""

    def write(self, data: Any) -> Any:
        """Write, as `io.RawIOBase.write`.

        Raises:
            InputError: the disk is full.
            SystemExit: the reader closed the pipe, as `head` does.
        """
        try:
            return super().write(data)
        except OSError as error:
            # The rest of the buffers is flushed again when Python ends, which would complain again.
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.fileno())
            os.close(nothing)
            if isinstance(error, BrokenPipeError):
                raise SystemExit(ExitCode.CLOSED_PIPE) from None
            raise InputError(f"cannot write to standard output: {error.strerror}") from None


def settle_streams() -> None:
    """Make standard output UTF-8; what that cannot write, halves of characters, becomes a question mark."""
    try:
        int(os.environ.get("COLUMNS", "80"))
    except ValueError:  # Rich takes any digits
        del os.environ["COLUMNS"]
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed: the first free descriptor is its own
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    started_with: Any = sys.__stdout__
    if sys.stdout is started_with and type(getattr(started_with.buffer, "raw", started_with.buffer)) is io.FileIO:
        data, line_buffering = io.BufferedWriter(_Data(1, "w", closefd=False)), bool(started_with.line_buffering)
        sys.stdout = io.TextIOWrapper(data, "utf-8", errors="replace", line_buffering=line_buffering)


def end_process(code: object) -> None:
    """End the process at once where torch was imported and nothing waits for more; elsewhere return, to end as usual.

    All that lives dies with the process. Taking torch and transformers apart first costs a quarter of a short run, and
    a look through all of it for cycles 6 % of a run without them.
    """
    if "torch" not in sys.modules:
        gc.freeze()
        return
    import threading

    is_watched = sys.gettrace() or sys.getprofile() or sys.flags.inspect  # a debugger, a profiler or `python -i`
    if is_watched or threading.active_count() > 1 or not isinstance(code, int):
        return
    atexit._run_exitfuncs()  # as `multiprocessing` ends its processes
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


# --- progress, which only a terminal shows and which is gone when the work is done -------------------------


@contextmanager
def status(environment: Environment, text: str) -> Iterator[None]:
    """Show a line while the block runs, then the steps of the sources in it; with `--verbose` these are lines."""
    if environment.is_verbose or not environment.has_live_stderr():
        yield
        return
    from rich.text import Text

    line = stderr_console().status(Text(visible(text)))

    def show(message: str, share: float | None) -> None:
        shown = Text(visible(message if share is None else f"{share:4.0%}  {message}"))
        line.update(shown, spinner="dots")  # a spinner has it drawn at once: a step may be over before the next frame

    with OnInterrupt(line.stop), line, listening(show, is_detailed=True):
        yield


class ProgressBar:
    """Progress bar over numbered results; hidden it only counts them.

    Args:
        total: the number of the last sentence, if that is known.
        is_hidden: whether a bar would be in the way.
    """

    def __init__(self, total: int | None, is_hidden: bool) -> None:
        self._total, self._last, self.count = total, 0, 0
        self._bar: Progress | None = None
        if not is_hidden and total != 1:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

            columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            self._bar = Progress(*columns, console=stderr_console(), transient=True, redirect_stdout=False)

    def advance(self, number: int) -> None:
        """Count a result; the bar is there from the first one on."""
        step = number - self._last if number > self._last else number  # another file begins anew
        self._last, self.count = number, self.count + step
        if self._bar is not None:
            if not self._bar.tasks:
                self._bar.start()
                self._bar.add_task("", total=self._total)
            self._bar.advance(self._bar.tasks[0].id, step)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def stopped(self, hint: str) -> str:
        """Return a note on a run that a signal stops, with a hint at its results; empty without results."""
        if not (self.count or hint) or self._total == 1:
            return ""
        of = "" if self._total is None else f" of {self._total:,}"
        count = f"stopped after {self.count:,}{of} sentences" if self.count else "stopped"
        return "; ".join(filter(None, (count, hint)))
