"""Processes in which Python runs that a program starts: they are not watched, and one line says how many there were."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from attncli.recording.apart import HAS_IMPORTED
from attncli.recording.notes import Notes

# What starts Python; and what only helps the Python that runs, or us.
_PYTHON = re.compile(r"\b(python|pypy)[0-9.]*\b|torchrun|accelerate|deepspeed")
_HELPERS = "multiprocessing.resource_tracker", "torch._inductor", HAS_IMPORTED
_STARTERS = ((subprocess, "_fork_exec"), (os, "system"), (os, "posix_spawn"), (os, "posix_spawnp"))


class Children:
    """The processes that were started.

    Attributes:
        is_on: whether they are counted.
        number: how many there were.
    """

    def __init__(self) -> None:
        self.is_on = True
        self.number = 0

    def started(self, command: str) -> None:
        """Count a process, if Python runs in it."""
        is_python = _PYTHON.search(command) is not None and not any(each in command for each in _HELPERS)
        self.number += self.is_on and is_python

    def tell(self, notes: Notes) -> None:
        """Say how many there were, in a line."""
        if not self.number:
            return
        are = "process that the program started is" if self.number == 1 else "processes that the program started are"
        line = f"{self.number} {are} not watched"
        is_launcher = "torch.distributed.elastic" in sys.modules
        notes.add(f"{line}; start attn in each: torchrun --no-python attn run SCRIPT" if is_launcher else line)


@contextmanager
def seeing_children() -> Iterator[Children]:
    """Count what this process starts, until the block ends."""
    children = Children()
    homes: list[tuple[Any, str]] = [*_STARTERS]
    with suppress(ImportError):
        import _posixsubprocess  # by which multiprocessing starts

        homes.append((_posixsubprocess, "fork_exec"))
    _SEEING.append(children)
    with ExitStack() as undone:
        undone.callback(_SEEING.remove, children)
        for home, name in homes:
            _count(home, name, children, undone)
        yield children


_SEEING: list[Children] = []


def count_no_more() -> None:
    """Leave out what we start at the end of a program."""
    for each in _SEEING:
        each.is_on = False


def _forked() -> None:
    for each in _SEEING:
        each.started("python")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_forked)


def _count(home: Any, name: str, children: Children, undone: ExitStack) -> None:
    """Have a function count what it starts."""
    start: Callable[..., Any] | None = getattr(home, name, None)
    if start is None:
        return

    def counted(*arguments: Any, **more: Any) -> Any:
        before = children.number
        result = start(*arguments, **more)
        if children.number == before:  # else it forked, which was counted
            with suppress(Exception):
                words = arguments[1] if name.startswith("posix") else arguments[0]
                children.started(words if isinstance(words, str) else " ".join(map(os.fsdecode, words)))
        return result

    def undo() -> None:
        if getattr(home, name) is counted:
            setattr(home, name, start)

    setattr(home, name, counted)
    undone.callback(undo)
