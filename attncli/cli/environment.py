"""The streams of the program, which may be closed, full or without a reader; the only module that uses sys.stdout."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout, suppress
from pathlib import Path
from time import perf_counter
from typing import IO, TYPE_CHECKING, Any, Self, TypeVar

from attncli.cli.terminal import PictureFile, Terminal, is_accessible
from attncli.errors import ExitCode, InputError
from attncli.text import brief, visible

if TYPE_CHECKING:
    from rich.console import Console

_Resource = TypeVar("_Resource")


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


def stderr_console() -> Console:
    """Return a console on stderr, for output that is removed at the end."""
    from rich.console import Console

    return Console(stderr=True, markup=False, highlight=False, emoji=False, soft_wrap=True)


def print_error(message: str, style: str = "bold red") -> int:
    """Write an error to stderr, safe to print and of any length; return how many lines it takes.

    It is one line. A terminal breaks that between words, and shows `attn` in a style, unless NO_COLOR is set.
    """
    text = visible(brief(message))
    with suppress(OSError):
        written = f"attn: {text}\n"
        if sys.stderr.isatty():
            from rich.text import Text

            wrapped = io.StringIO()  # a text: whatever is drawn on stderr takes it above itself
            Terminal(sys.stderr, pages=wrapped).show([Text.assemble(("attn:", style), f" {text}")])
            written = wrapped.getvalue()
        sys.stderr.write(written)
        sys.stderr.flush()
        return written.count("\n")
    return 0


@contextmanager
def listening(hear: Callable[[str, float | None], None], is_detailed: bool = False) -> Iterator[None]:
    """Pass the logs of the sources to a function while the block runs.

    Args:
        hear: takes one line, and the share of a download that is done, if it is about one; the line may quote anything.
        is_detailed: whether the progress of a download counts too.
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
    """Streams and verbosity of a run; as a context, the run itself.

    Within, standard output is for data: output of libraries, or of code from a checkpoint, goes to stderr. Entered
    contexts are closed at the end.

    Args:
        is_quiet: whether errors alone are printed.
        is_verbose: whether steps of the sources are printed too, with times.
    """

    def __init__(self, is_quiet: bool = False, is_verbose: bool = False) -> None:
        self._data = sys.stdout
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

    def on_stderr(self) -> Environment:
        """Return one that writes its data to stderr: standard output belongs to a program that is run."""
        other = Environment(self.is_quiet, self.is_verbose)
        other._data = sys.stderr
        return other

    def note(self, message: str) -> None:
        """Print a note, such as a warning, unless `--quiet` is on."""
        if not self.is_quiet:
            self._lines += print_error(message, "bold")

    @property
    def noted_lines(self) -> int:
        """Number of terminal lines of notes; 0 where stderr is a file."""
        return self._lines if sys.stderr is not None and sys.stderr.isatty() else 0

    def info(self, message: str) -> None:
        """Print a step, and its time, if `--verbose` is on."""
        if self.is_verbose:
            print_error(f"{perf_counter() - self._begun:.2f} s: {message}", "bold")

    def has_live_stderr(self) -> bool:
        """Whether stderr is a terminal that can erase, for a progress bar, and the user wants to see it."""
        is_watched = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        return is_watched and not self.is_quiet

    def lacks_screen(self) -> str:
        """Return the reason that there is no interactive screen; empty where there is one."""
        streams = {"standard input": sys.stdin, "standard output": self._data, "standard error": sys.stderr}
        if other := next((name for name, one in streams.items() if one is None or not one.isatty()), None):
            return f"{other} is not one"
        if os.environ.get("TERM") == "dumb":
            return "TERM says that this one is dumb"
        if is_accessible():
            return "ACCESSIBLE says that it is read aloud"
        return ""

    def is_terminal(self, path: Path | None) -> bool:
        """Whether a file, or standard output where it is None, is a terminal."""
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

    def write(self, pieces: Iterable[str], path: Path | None = None) -> None:
        """Write a document to a file, or to standard output."""
        with self.output(path) as stream:
            stream.writelines(pieces)

    def write_bytes(self, content: bytes, path: Path) -> None:
        """Write a file that appears when it is whole."""
        from attncli.files import atomic_write

        with atomic_write(path) as temporary, open(temporary, "wb") as file:
            file.write(content)

    @contextmanager
    def open_view(
        self,
        name: str,
        chosen: str = "table",
        path: Path | None = None,
        color: str | None = None,
        width: int | None = None,
        is_all: bool = False,
    ) -> Iterator[Terminal | PictureFile]:
        """Yield an output for views; a picture is written after all of them.

        With `is_all`, a terminal shows it in a pager.

        Args:
            name: of the command, for the title of a picture.
            chosen: one of `formats.DRAWN`.
            path: its file; None is standard output.
            color: `auto`, `always` or `never`; None is `auto`.
            width: cells in a line; None leaves it to the output.
            is_all: whether to show everything, beyond the size of a screen.
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

        picture = PictureFile(chosen, color or "auto", width)
        if path is not None and chosen in FIGURES:
            yield picture
            self.write_bytes(picture.figure(name), path)
            return
        with self.output(path, encoding="utf-8") as stream:
            yield picture
            stream.writelines(picture.written(name))


def _page(text: str, stream: IO[str]) -> None:
    """Show text in the user's pager, by default less; print it without one."""
    from subprocess import run

    command, not_found = os.environ.get("PAGER", "less"), 127  # exit code of a shell
    # -F: a text that fits a screen is only printed; -R: colours; -X: the text stays on the screen.
    variables = {"LESS": "FRX"} | os.environ
    if (
        not command
        or run(command, shell=True, input=text.encode(errors="replace"), env=variables).returncode == not_found
    ):
        stream.write(text)


# --- standard streams -------------------------------------------------------------------------------------

_CLOSED = {0: os.O_RDONLY, 1: os.O_RDONLY, 2: os.O_WRONLY}  # how nothing is opened in a closed stream's place


class _Data(io.FileIO):
    """Standard output; the first thing that cannot be written ends the program."""

    def write(self, data: Any) -> Any:
        """Write, as `io.RawIOBase.write`.

        Raises:
            InputError: the disk is full, or the stream is closed.
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
    elif sys.stdout is started_with and type(getattr(started_with.buffer, "raw", started_with.buffer)) is io.FileIO:
        sys.stdout = _text(started_with.encoding, bool(started_with.line_buffering))


def _text(encoding: str, line_buffering: bool = False) -> io.TextIOWrapper:
    # Whatever the encoding lacks is written as an escape; a lone character must not end the program.
    data = io.BufferedWriter(_Data(1, "w", closefd=False))
    return io.TextIOWrapper(data, encoding, errors="backslashreplace", line_buffering=line_buffering)
