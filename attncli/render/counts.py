"""How many there are of something, in words."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return a number of things: 1 head, 12 heads."""
    return f"{count:,} {noun}{'s' if count != 1 else ''}"
