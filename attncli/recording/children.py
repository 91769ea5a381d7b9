"""Processes in which Python runs that a program starts: they are not watched, and one line says how many there were."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from attncli.recording.apart import HAS_IMPORTED
from attncli.recording.import_hook import when_imported
from attncli.recording.notes import Notes

# What starts Python; and what only helps the Python that runs, or us.
_PYTHON = re.compile(r"\b(python|pypy)[0-9.]*\b|torchrun|accelerate|deepspeed")
_HELPERS = "multiprocessing.resource_tracker", "torch._inductor", HAS_IMPORTED
# Python's events of what starts a process, and where among their arguments the command is.
_EVENTS = {"subprocess.Popen": 1, "os.system": 0, "os.posix_spawn": 1}


class Children:
    """The processes that were started.

    Attributes:
        number: how many there were.
    """

    number = 0

    def count(self, command: Any) -> None:
        """Count a process, if Python runs in it."""
        with suppress(TypeError):
            text = " ".join(map(os.fsdecode, [command] if isinstance(command, str | bytes) else command))
            self.number += _PYTHON.search(text) is not None and not any(each in text for each in _HELPERS)

    def add_note(self, notes: Notes) -> None:
        """Say how many there were, in a line."""
        if not self.number:
            return
        are = "process that the program started is" if self.number == 1 else "processes that the program started are"
        line = f"{self.number} {are} not watched"
        is_launcher = "torch.distributed.elastic" in sys.modules
        notes.add(f"{line}. Start attn in each: torchrun --no-python attn run SCRIPT" if is_launcher else line)


_ACTIVE: list[Children] = []
_HAS_HOOK: list[bool] = []  # one stays for good


def _audit(event: str, args: tuple[Any, ...]) -> None:
    for each in _ACTIVE:
        if event == "os.fork":
            each.count("python")
        elif (place := _EVENTS.get(event)) is not None:
            each.count(args[place])


@contextmanager
def counting_children() -> Iterator[Children]:
    """Count what this process starts, until the block ends."""
    children = Children()
    if not _HAS_HOOK:
        _HAS_HOOK.append(True)
        sys.addaudithook(_audit)

    with ExitStack() as stack:

        def hook() -> None:
            """Count what multiprocessing starts anew, of which there is no event."""
            from multiprocessing import util

            start = util.spawnv_passfds

            def counted(path: Any, args: Any, passfds: Any) -> Any:
                if children in _ACTIVE:
                    children.count(args)
                return start(path, args, passfds)

            util.spawnv_passfds = counted
            stack.callback(setattr, util, "spawnv_passfds", start)

        _ACTIVE.append(children)
        stack.enter_context(when_imported("multiprocessing.util", hook))
        yield children
    stop_counting()


def stop_counting() -> None:
    """Leave out what we start at the end of a program."""
    _ACTIVE.clear()
