"""The program from its `main()` on, in this process: over real descriptors, as a shell starts it, but in milliseconds.

What a process of its own has besides is its start and its end, which are the subject of test_start and test_signals.
"""

import gc
import importlib
import io
import os
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import typer.main
from running import Ran

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def _put_back() -> Iterator[None]:
    """Undo what the program does to its process, which is all its own: signal handlers, collector, hook, streams."""
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    threshold, hook = gc.get_threshold(), sys.excepthook
    streams = {
        name: getattr(sys, name) for name in ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__")
    }
    main, path = sys.modules["__main__"], [*sys.path]
    descriptors = [os.dup(number) for number in range(3)]
    try:
        yield
    finally:
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        for name, stream in streams.items():
            setattr(sys, name, stream)
        sys.modules["__main__"], sys.path[:] = main, path
        sys.excepthook = hook
        gc.set_threshold(*threshold)
        for signal_number, handler in handlers.items():
            signal.signal(signal_number, handler)


@contextmanager
def whole_program() -> Iterator[Callable[..., Ran]]:
    """Give a function that runs `main()` with arguments, standard input and an environment."""
    from attncli.cli.app import app

    build = typer.main.get_command
    root = build(app)
    with (
        ExitStack() as stack,
        patch.object(typer.main, "get_command", lambda made: root if made is app else build(made)),
        patch.object(threading, "_shutdown", lambda: None),  # `attn run` ends all threads
        patch.object(gc, "freeze", lambda: None),  # what lives at the end of a run does not die with the process
        _put_back(),
    ):
        # As a program's first line does; from here on a SIGTERM finds the program's own handler.
        entry = importlib.reload(importlib.import_module("attncli.__main__"))
        assert signal.getsignal(signal.SIGTERM).__module__ == "attncli.signals"
        files = [stack.enter_context(tempfile.TemporaryFile(buffering=0)) for _ in range(3)]

        def run(*arguments: str | Path, stdin: bytes = b"", **environment: str) -> Ran:
            with (
                _connected(files, stdin),
                patch.object(sys, "argv", ["attn", *map(str, arguments)]),
                patch.dict(os.environ, environment),
            ):
                code = _ended(entry.main)
            out, err = (_content(file).decode() for file in files[1:])
            assert "this is a bug in attn" not in err, err
            return Ran(code, out, err)

        yield run


def forked(*arguments: str | Path, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `main()` in a copy of this process, with all imported: for `attn run`, whose program may do what it likes."""
    for name in ("torch._dynamo", "attncli.analysis.calls.calls", "attncli.render.calls", "attncli.recording.watch"):
        importlib.import_module(name)
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile(buffering=0)) for _ in range(3)]
        process = os.fork()
        if process == 0:
            code = 99
            try:
                with _connected(files, stdin.encode()), patch.dict(os.environ, environment):
                    warnings.resetwarnings()
                    sys.argv = ["attn", *map(str, arguments)]
                    sys.path.insert(0, os.getcwd())
                    code = _ended(importlib.reload(importlib.import_module("attncli.__main__")).main)
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        out, err = (_content(file).decode() for file in files[1:])
    return subprocess.CompletedProcess(arguments, code, out, err)


@contextmanager
def _connected(files: list[Any], stdin: bytes) -> Iterator[None]:
    """Make three files this process's standard streams, the first with this content, as Python opens them."""
    with _put_back():
        for number, file in enumerate(files):
            file.seek(0)
            file.truncate()
            os.dup2(file.fileno(), number)
        os.write(0, stdin)
        os.lseek(0, 0, os.SEEK_SET)
        opened = partial(open, encoding="utf-8", closefd=False)
        sys.stdin = sys.__stdin__ = opened(0, errors="surrogateescape")  # type: ignore[misc]
        sys.stdout = sys.__stdout__ = opened(1, "w", errors="surrogateescape")  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = opened(2, "w", errors="backslashreplace")  # type: ignore[misc]
        yield


def _ended(main: Callable[[], None]) -> int:
    """Return the exit code of a program, whose buffers are written as when Python ends."""
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)  # a text, which Python would print, is no number
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    raise AssertionError("main() returned; the program ends with an exit code")


def _content(file: io.FileIO) -> bytes:
    file.seek(0)
    return file.read()
