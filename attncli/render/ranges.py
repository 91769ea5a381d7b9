"""Numbers in a line: `3`, `0..5`, `0..2, 4, …`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_LISTED = 12


def span(low: int, high: int) -> str:
    """Return a range in words, both ends included."""
    return str(low) if low == high else f"{low}..{high}"


def listed(places: Sequence[int]) -> str:
    """Return how many there are and which, consecutive ones as a range."""
    return f"{len(places)}: {ranges(places)}" if places else "none"


def ranges(places: Sequence[int]) -> str:
    """Return numbers with consecutive ones as a range, and an ellipsis where there are too many."""
    runs = np.split(np.array(places), np.flatnonzero(np.diff(places) != 1) + 1)
    shown = ", ".join(span(int(run[0]), int(run[-1])) for run in runs[:_LISTED])
    return shown + (", …" if len(runs) > _LISTED else "")
