"""How a program of the user's ends: with the exit code that python gives it, and with the words that python says.

Where it fails, its traceback shows its own frames and not ours; where torch warns, it names the program's line.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, NoReturn

from attncli.errors import ExitCode
from attncli.recording.notes import Notes

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep


def ended(run: Callable[[], None]) -> int:
    """Run to the end, and return the exit code; what python prints about it is printed."""
    try:
        run()
    except SystemExit as end:
        return _code_of(end)
    except BaseException as error:
        failure = error
    else:
        return 0
    _without_ours(failure, set())
    sys.last_type, sys.last_value, sys.last_traceback = type(failure), failure, failure.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = failure
    try:
        sys.excepthook(type(failure), failure, failure.__traceback__)
    except SystemExit as end:
        return _code_of(end)
    except BaseException:  # the program's hook fails itself
        sys.__excepthook__(type(failure), failure, failure.__traceback__)
    return ExitCode.INTERRUPTED if isinstance(failure, KeyboardInterrupt) else 1


def _code_of(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    print(end.code, file=sys.stderr)  # noqa: T201
    return 1


def end_threads() -> None:
    """Wait for the other threads, as python does; a Ctrl-C ends the waiting."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    except BaseException as error:
        _without_ours(error, set())
        print(f"Exception ignored in: {threading!r}", file=sys.stderr)  # noqa: T201
        sys.__excepthook__(type(error), error, error.__traceback__)


def _without_ours(error: BaseException | None, seen: set[int]) -> None:
    """Take our frames, and those by which python imports, out of a traceback and those of what it came from."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    frames: list[TracebackType] = []
    traceback = error.__traceback__
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not file.startswith((_OURS, "<frozen importlib.")):
            frames.append(traceback)
        traceback = traceback.tb_next
    shown: TracebackType | None = None
    for frame in reversed(frames):
        shown = TracebackType(shown, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    error.__traceback__ = shown
    _without_ours(error.__cause__, seen)
    _without_ours(error.__context__, seen)


@contextmanager
def warnings_of_its_lines() -> Iterator[None]:
    """Have torch's warnings name the line of the program that they are about, and not ours, which called torch."""
    show = warnings.showwarning

    def show_there(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, *rest: Any, **more: Any
    ) -> None:
        if filename.startswith(_OURS):
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_code.co_filename.startswith((_OURS, warnings.__file__)):
                frame = frame.f_back
            if frame is not None:
                filename, lineno = frame.f_code.co_filename, frame.f_lineno
        show(message, category, filename, lineno, *rest, **more)

    warnings.showwarning = show_there
    try:
        yield
    finally:
        if warnings.showwarning is show_there:
            warnings.showwarning = show


@contextmanager
def reporting_at_sudden_ends(report: Callable[[], object], notes: Notes) -> Iterator[None]:
    """Have what ends this process without a word report first. A forked child leaves as it does."""
    own_process = os.getpid()

    def reporting(name: str, leave: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        def report_and_leave(*arguments: Any, **named: Any) -> NoReturn:
            try:
                if os.getpid() == own_process:
                    if name != "_exit":
                        notes.add("the program became another one by os.exec, which is not watched")
                    report()
                    sys.stderr.flush()
            finally:
                leave(*arguments, **named)

        return report_and_leave

    was = {name: getattr(os, name) for name in ("_exit", "execv", "execve")}
    for name, leave in was.items():
        setattr(os, name, reporting(name, leave))
    try:
        yield
    finally:
        for name, leave in was.items():
            setattr(os, name, leave)
