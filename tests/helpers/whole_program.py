"""The program from its `main()` on, in a fork of this process: over real descriptors, as a shell starts it."""

import importlib
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import typer.main
from running import Ran

from attncli.cli.app import app

# Imported before the fork, once for all runs: what a small one would spend most of its time on.
_SHARED = (
    "attncli.analysis.mask", "attncli.analysis.warnings", "attncli.cli.commands.inspect", "attncli.corpus.run",
    "attncli.engines.toy", "attncli.formats.columns", "attncli.formats.documents", "attncli.formats.pictures",
    "attncli.masks.parser", "attncli.render.inspect", "attncli.render.masks", "numpy.random", "rich.table",
)  # fmt: skip


@contextmanager
def whole_program() -> Iterator[Callable[..., Ran]]:
    build = typer.main.get_command
    root = build(app)  # once, for that takes half of a run
    for name in _SHARED:
        importlib.import_module(name)

    def run(*arguments: str | Path, stdin: bytes = b"", **environment: str) -> Ran:
        ran = _forked([str(argument) for argument in arguments], stdin, environment)
        assert "this is a bug in attn" not in ran.err, ran.err
        return ran

    with patch.object(typer.main, "get_command", lambda made: root if made is app else build(made)):
        yield run


def forked(*arguments: str | Path, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `main()` with all imported: for `attn run`, whose program may do what it likes."""
    for name in ("torch._dynamo", "attncli.analysis.calls.calls", "attncli.render.calls", "attncli.recording.watch"):
        importlib.import_module(name)
    ran = _forked([str(argument) for argument in arguments], stdin.encode(), environment)
    return subprocess.CompletedProcess(arguments, ran.code, ran.out, ran.err)


def _forked(arguments: list[str], stdin: bytes, environment: dict[str, str]) -> Ran:
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile(buffering=0)) for _ in range(3)]
        if (process := os.fork()) == 0:
            code = 99
            try:
                _connect(files, stdin)
                os.environ.update(environment)
                warnings.resetwarnings()
                sys.argv = ["attn", *arguments]
                sys.path.insert(0, os.getcwd())
                main = importlib.reload(importlib.import_module("attncli.__main__")).main
                code = _ended(partial(main, is_process=False))
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        for file in files:
            file.seek(0)
        return Ran(code, *(file.read().decode() for file in files[1:]))


def _connect(files: list[Any], stdin: bytes) -> None:
    for number, file in enumerate(files):
        os.dup2(file.fileno(), number)
    os.write(0, stdin)
    os.lseek(0, 0, os.SEEK_SET)
    opened = partial(open, encoding="utf-8", closefd=False)
    sys.stdin = sys.__stdin__ = opened(0, errors="surrogateescape")
    sys.stdout = sys.__stdout__ = opened(1, "w", errors="surrogateescape")
    sys.stderr = sys.__stderr__ = opened(2, "w", errors="backslashreplace")


def _ended(main: Callable[[], None]) -> int:
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)  # a text, which Python would print, is no number
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    raise AssertionError("main() returned; the program ends with an exit code")
