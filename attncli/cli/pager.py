"""The pager of a person at a terminal, for a view that is longer than a screen."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from subprocess import PIPE, Popen
from typing import IO, Any

from attncli.interruption import Undoing


class _LeftError(Exception):
    """The reader left the pager: no broken pipe, at which Rich ends the program."""


class _Pager:
    """What writes into a pager, which begins with the first thing that is written."""

    def __init__(self, command: str, encoding: str) -> None:
        self._command, self._encoding = command, encoding
        self._process: Popen[str] | None = None

    def write(self, text: str) -> int:
        if self._process is None:
            # -F: what fits a screen is only printed; -R: colours; -X: what was read stays on the screen.
            environment = {"LESS": "FRX", "LV": "-c"} | os.environ
            how = {"encoding": self._encoding, "errors": "backslashreplace", "env": environment}
            self._process = Popen(self._command, shell=True, stdin=PIPE, **how)  # type: ignore[call-overload]
        try:
            return self._input.write(text)
        except BrokenPipeError:
            raise _LeftError from None

    @property
    def _input(self) -> IO[str]:
        assert self._process is not None
        assert self._process.stdin is not None
        return self._process.stdin

    def flush(self) -> None:
        if self._process is not None:
            try:
                self._input.flush()
            except BrokenPipeError:
                raise _LeftError from None

    def abandon(self) -> None:
        """Write no more, and wait for the pager, which has the terminal."""
        if self._process is not None:
            with suppress(OSError):
                os.close(self._input.fileno())
            self._process.wait()

    def end(self) -> None:
        """Wait until the reader has seen enough."""
        if self._process is not None:
            with suppress(OSError):  # nobody reads the rest any more
                self._input.close()
            self._process.wait()


@contextmanager
def paged(stream: IO[str]) -> Iterator[Any]:
    """Give what writes into the pager of a person at a terminal: `PAGER`, else less, as git does; else the terminal.

    The block ends when the pager does. Who leaves that early has seen enough. Ctrl-C ends the run, but not before
    the reader leaves what came until then.
    """
    command = os.environ.get("PAGER", "less")
    try:
        words = shlex.split(command)
    except ValueError:  # a quotation that does not end
        words = []
    if not words or words == ["cat"] or shutil.which(words[0]) is None:
        yield stream
        return
    pager = _Pager(command, getattr(stream, "encoding", None) or "utf-8")
    with Undoing(pager.abandon):
        try:
            yield pager
            pager.flush()
        except _LeftError:
            pass
        finally:
            pager.end()
