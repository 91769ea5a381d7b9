"""Positions in a line: `none`, `1: 3`, `4: 0..2, 4`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_LISTED = 12


def span(low: int, high: int) -> str:
    """Return a range in words, both ends included."""
    return str(low) if low == high else f"{low}..{high}"


def listed(places: Sequence[int]) -> str:
    """Return how many there are and which, consecutive ones as a range, and an ellipsis where there are too many."""
    if not places:
        return "none"
    runs = np.split(np.array(places), np.flatnonzero(np.diff(places) != 1) + 1)
    shown = ", ".join(span(int(run[0]), int(run[-1])) for run in runs[:_LISTED])
    return f"{len(places)}: {shown}" + (", …" if len(runs) > _LISTED else "")
