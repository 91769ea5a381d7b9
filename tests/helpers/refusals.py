"""What every bad request ends with, what must not be obeyed, and a folder in which nothing may be left."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from outputs import INPUT, LOAD, NOT_EXPOSED, USAGE, obeyed, one_sentence

__all__ = ["ESCAPE", "INPUT", "LOAD", "NOT_EXPOSED", "USAGE", "Evil", "left_in", "raw", "refused"]
ESCAPE = "\x1b[31mred\x07\x9b2J\u202etxt\nsecond line"
raw = obeyed


def refused(ran: Any, code: int, *words: str) -> None:
    assert ran.code == code, ran.err
    one_sentence(ran.code, ran.out, ran.err)
    for word in words:
        assert word in ran.err, ran.err


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Evil:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.canary),)
