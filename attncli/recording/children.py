"""Python processes that a program starts: one note counts them, as they are not watched."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from typing import Any

_PYTHON = re.compile(r"\b(python|pypy)[0-9.]*\b|torchrun|accelerate|deepspeed")
_COMMANDS = {"subprocess.Popen": 1, "os.system": 0, "os.posix_spawn": 1}  # where among their arguments it is
_started: list[str] = []


def count_children() -> None:
    """Count the commands that this process runs from now on."""
    sys.addaudithook(_audit)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    with suppress(TypeError, KeyError):
        command = args[_COMMANDS[event]]
        _started.append(" ".join(map(os.fsdecode, [command] if isinstance(command, str | bytes) else command)))


def children_note() -> str | None:
    """Return how many Python processes were started, as a sentence; None where none was."""
    process: Any = sys.modules.get("multiprocessing.process")
    number = 0 if process is None else next(process._process_counter) - 1
    number += sum(_PYTHON.search(one) is not None and "torch._inductor" not in one for one in _started)
    processes = "process was" if number == 1 else "processes were"
    return f"{number} child {processes} not watched; run them under attn run" if number else None
