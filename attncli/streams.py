"""The standard streams of the program, which may be closed, full, or read by nobody any more."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any

from attncli.errors import ExitCode, InputError
from attncli.terminal import NARROWEST

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


def settle_widths() -> None:
    """Make sure that a width which the environment sets is one; Rich and Typer take any number, and Typer any word."""
    for name in ("COLUMNS", "TERMINAL_WIDTH"):
        try:
            width = int(os.environ.pop(name, ""))
        except ValueError:
            continue
        if width > 0:
            os.environ[name] = str(min(max(width, NARROWEST), _WIDEST))


def _is_file(stream: Any) -> bool:
    """Return whether a stream is bytes in the end; a console of Windows is not."""
    return type(getattr(stream.buffer, "raw", stream.buffer)) is io.FileIO


def _text(encoding: str, line_buffering: bool = False) -> io.TextIOWrapper:
    # Whatever the encoding lacks is written as an escape; a lone character must not end the program.
    data = io.BufferedWriter(_Data(1, "w", closefd=False))
    return io.TextIOWrapper(data, encoding, errors="backslashreplace", line_buffering=line_buffering)
