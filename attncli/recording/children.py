"""Processes that a program starts: they are not watched, and one line says so.

Told are those in which Python runs: copies of the program, and commands that are python or a script for it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from attncli.recording.apart import HAS_IMPORTED
from attncli.recording.notes import Notes

_PYTHON = re.compile(r"(python|pypy)[0-9.]*(\.exe)?")
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
_MOST_NAMED = 3


class Children:
    """The processes that were started, by what they are."""

    def __init__(self) -> None:
        self.is_on = True
        self._started: Counter[str] = Counter()
        self._local = threading.local()

    def forked(self) -> None:
        """Count a copy of this process; what only makes room for a command is none."""
        if self.is_on and not getattr(self._local, "is_command", False):
            self._started[_starter() or "forked"] += 1

    @contextmanager
    def command(self, words: Sequence[Any]) -> Iterator[None]:
        """Count a command once it was started."""
        self._local.is_command = True
        try:
            yield
        finally:
            self._local.is_command = False
        with suppress(Exception):
            if self.is_on and (name := _python_of([os.fsdecode(word) for word in words])) is not None:
                self._started[name] += 1

    def tell(self, notes: Notes) -> None:
        """Say which processes there were, in a line."""
        if not self._started:
            return
        number = sum(self._started.values())
        names = [f"{count} × {name}" if count > 1 else name for name, count in self._started.most_common(_MOST_NAMED)]
        more = [f"{len(self._started) - _MOST_NAMED} others"] * (len(self._started) > _MOST_NAMED)
        are = "process that the program started is" if number == 1 else "processes that the program started are"
        line = f"{number} {are} not watched: {', '.join([*names, *more])}"
        is_launcher = "torch.distributed.elastic" in sys.modules
        notes.add(f"{line}; start attn in each: torchrun --no-python attn run SCRIPT" if is_launcher else line)


@contextmanager
def seeing_children() -> Iterator[Children]:
    """Count what this process starts, until the block ends."""
    children = Children()
    _SEEING.append(children)
    undo = [undo for home, name in _starters() for undo in _wrap(home, name, children)]
    try:
        yield children
    finally:
        for each in undo:
            each()
        _SEEING.remove(children)


_SEEING: list[Children] = []


@contextmanager
def unseen() -> Iterator[None]:
    """Count nothing that is started within the block, as it is we who start it."""
    seeing = [*_SEEING]
    for each in seeing:
        each.is_on = False
    try:
        yield
    finally:
        for each in seeing:
            each.is_on = True


def _forked() -> None:
    for each in _SEEING:
        each.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_forked)


def _starters() -> list[tuple[Any, str]]:
    """Return where the functions are that start commands; multiprocessing uses the first one, too."""
    homes: list[tuple[Any, str]] = [
        (os, "system"),
        (os, "posix_spawn"),
        (os, "posix_spawnp"),
        (subprocess, "_fork_exec"),
    ]
    with suppress(ImportError):
        import _posixsubprocess

        homes.append((_posixsubprocess, "fork_exec"))
    return homes


# The words of a command in the arguments of what starts it.
_WORDS: dict[str, Callable[..., Sequence[Any]]] = {
    "fork_exec": lambda words, *rest: words,
    "system": lambda line: ("sh", "-c", line),
    "posix_spawn": lambda _, words, *rest: words,
    "posix_spawnp": lambda _, words, *rest: words,
}


def _wrap(home: Any, name: str, children: Children) -> Iterator[Callable[[], None]]:
    """Have a function count, and yield what undoes that."""
    start = getattr(home, name, None)
    if start is None:
        return
    words_of = _WORDS.get(name, _WORDS["fork_exec"])

    def started(*arguments: Any, **more: Any) -> Any:
        with children.command(words_of(*arguments)):
            return start(*arguments, **more)

    def undo() -> None:
        if getattr(home, name) is started:
            setattr(home, name, start)

    setattr(home, name, started)
    yield undo


def _python_of(words: list[str]) -> str | None:
    """Return what a command is called in which Python runs; None of others, and of what only helps Python."""
    if os.path.basename(words[0]) in _SHELLS and "-c" in words[:-1]:
        words = shlex.split(words[words.index("-c") + 1])
        while words and not _is_python(words[0]):
            words = words[1:]
    if not words or not _is_python(words[0]):
        return None
    line = " ".join(words)
    if any(name in line for name in ("multiprocessing.resource_tracker", "torch._inductor", HAS_IMPORTED)):
        return None
    if (starter := _starter()) is not None:
        return starter
    return " ".join(map(os.path.basename, (words[0], *_script_of(words))))


def _script_of(words: list[str]) -> list[str]:
    """Return what python is told to run: a script, `-c`, or `-m` with a module; nothing of another command."""
    if not _PYTHON.fullmatch(os.path.basename(words[0])):
        return []
    for index, word in enumerate(words[1:], 1):
        if word in ("-c", "-m"):
            return words[index : index + (1 if word == "-c" else 2)]
        if not word.startswith("-") and words[index - 1] not in ("-W", "-X"):
            return [word]
    return []


def _starter() -> str | None:
    """Return what starts a process just now, if it is a library that is known for it."""
    frame: FrameType | None = sys._getframe(1)
    found = None
    while frame is not None:
        file = frame.f_code.co_filename.replace(os.sep, "/")
        if file.endswith("/torch/utils/data/dataloader.py"):
            return "DataLoader worker"
        if "/multiprocessing/" in file and "/torch/" not in file:
            found = "multiprocessing"
        frame = frame.f_back
    return found


def _is_python(command: str) -> bool:
    """Return whether a command is python, or a script whose first line names it."""
    if _PYTHON.fullmatch(os.path.basename(command)):
        return True
    path = shutil.which(command)
    with suppress(OSError):
        if path is not None:
            with open(path, "rb") as file:
                first = file.readline(256)
            return first.startswith(b"#!") and b"python" in first
    return False
