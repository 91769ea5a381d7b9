"""Where each pane stands in a terminal of some size."""

from __future__ import annotations

from typing import Literal, NamedTuple

Pane = Literal[
    "mark", "text", "tokens", "head", "heads", "map", "why", "cell", "label", "line", "status", "foot", "help"
]
MAPS: tuple[Pane, ...] = ("head", "heads", "map")

LEAST = (40, 12)  # columns and lines
_TWO = 72  # columns from which something stands beside the large head
_THREE = 13  # lines from which it is the map above the small heads
_GAP = 2


class PaneRect(NamedTuple):
    """A rectangle of cells."""

    x: int
    y: int
    width: int
    height: int


def places(size: tuple[int, int], lines: int, chosen: Pane = "head", has_why: bool = False) -> dict[Pane, PaneRect]:
    """Return where the panes stand that there is room for; where that is one map alone, it is the chosen one.

    Args:
        size: columns and lines of the terminal; where there are too few, the status has all of them, to say so.
        lines: how many the map takes.
        chosen: the map that a person is in.
        has_why: whether they want to know why; it stands where the map and the small heads would.
    """
    width, height = size
    if width < LEAST[0] or height < LEAST[1]:
        return {"status": PaneRect(0, 0, width, height)}
    strip = 2 if height >= 20 else 1
    top, bottom = 1 + strip, height - 3
    found: dict[Pane, PaneRect] = {
        "mark": PaneRect(0, 0, 2, 1),
        "text": PaneRect(2, 0, width - 2, 1),
        "tokens": PaneRect(0, 1, width, strip),
        "cell": PaneRect(0, bottom, width, 1),
        "status": PaneRect(0, height - 2, width, 1),
        "foot": PaneRect(0, height - 1, width, 1),
    }
    body = bottom - top
    if width < _TWO:
        found["why" if has_why else chosen] = PaneRect(0, top, width, body)
        return found
    left = width // 2 if has_why else width * 4 // 7
    x, right = left + _GAP, width - left - _GAP
    found["head"] = PaneRect(0, top, left, body)
    if has_why or body < _THREE:
        found["why" if has_why else "heads" if chosen == "heads" else "map"] = PaneRect(x, top, right, body)
    else:
        upper = min(lines, body // 2)
        found["map"] = PaneRect(x, top, right, upper)
        found["heads"] = PaneRect(x, top + upper, right, body - upper)
    return found


def help_places(size: tuple[int, int]) -> dict[Pane, PaneRect]:
    """Return where the help stands: above the line at the foot, and nothing beside it."""
    width, height = size
    return {"help": PaneRect(0, 0, width, height - 1), "foot": PaneRect(0, height - 1, width, 1)}
