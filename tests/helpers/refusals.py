"""What every bad request ends with, and a folder in which nothing may be left."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

USAGE, LOAD, INPUT = 2, 3, 5


def refused(ran: Any, code: int, *words: str) -> None:
    """Check that a run ended as every bad request does."""
    assert ran.code == code, ran.err
    assert ran.out == ""
    assert ran.err.startswith("attn: ")
    assert ran.err.endswith("\n")
    assert ran.err.count("\n") == 1
    assert "Traceback" not in ran.err
    assert len(ran.err) > len("attn: \n") + 15
    for word in words:
        assert word in ran.err


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- escape sequences --------------------------------------------------------------------------------------

ESCAPE = "\x1b[31mred\x07\x9b2J\u202etxt\nsecond line"


def raw(text: str) -> set[str]:
    return {c for c in text if c != "\n" and (unicodedata.category(c) in {"Cc", "Zl", "Zp"} or c in "\u202e\u2066")}
