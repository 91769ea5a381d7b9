"""Where everything in a figure is, in points from its upper left corner, and how large its letters and cells are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from attncli.errors import UsageError
from attncli.formats.figures.groups import Group
from attncli.formats.figures.size import INCH, Size
from attncli.formats.figures.words import Words
from attncli.render.axes import STEPS
from attncli.text import counted

_HIGH = 1.2  # times as high as wide a figure of several heads becomes, if its height was left open
_TALLEST = 9 * INCH  # of any figure whose height was left open, unless it needs more
FONT_SIZES = (8.0, 7.0, 6.0)
AIR = 1.1  # from one line of letters to the next, in units of the size of the font
MARGIN = 2.0  # at the edges of the figure
GAP = 4.0  # between two maps, and between a map and what stands beside it


class Layout(NamedTuple):
    """Where everything is.

    Attributes:
        font: size of the letters.
        cell: side of a cell, of one query and one key.
        step: at every how many places an axis has a label.
        left: width of the labels of rows.
        below: height of the labels of columns, for each group.
        across: how many maps of each group stand side by side.
        slots: from one map of each group to the next.
        height: of all maps with their labels.
    """

    font: float
    cell: float
    step: int
    left: float
    below: list[float]
    across: list[int]
    slots: list[float]
    height: float


def layout_of(groups: Sequence[Group], size: Size, words: Words, footer: float) -> Layout:
    """Return the layout with the largest letters that leave every token its label, else with the most labels.

    Args:
        groups: the maps.
        size: of the figure.
        words: its fonts.
        footer: height of what stands below the maps.

    Raises:
        UsageError: there is no room for the maps.
    """
    smallest, found = FONT_SIZES[-1], None
    for font, step in [*((font, 1) for font in FONT_SIZES), *((smallest, step) for step in STEPS[1:])]:
        layout = _largest(groups, size, words, footer, font, step)
        found = layout or found
        if layout is not None and layout.cell * step >= AIR * font:
            return layout
    if found is None:
        count = sum(len(group.titles) for group in groups)
        raise UsageError(
            f"{counted(count, 'map')} {'does' if count == 1 else 'do'} not fit a figure of this size; choose with "
            "--layer, --head, --query and --key, or give a larger --size"
        )
    return found


def _largest(groups: Sequence[Group], size: Size, words: Words, footer: float, font: float, step: int) -> Layout | None:
    """Return the layout in which cells are largest, by how many maps stand side by side; None where none fits."""
    line = AIR * font
    rows, columns = ([_longest(group, side, step, words, font) for group in groups] for side in (0, 1))
    columns = [high if is_labelled(groups, place) else 0.0 for place, high in enumerate(columns)]
    left = max(rows) + MARGIN
    titles = [max(words.width(title, font) for title in group.titles) for group in groups]
    most = max(len(group.titles) for group in groups)
    room = size.width - left - MARGIN
    limit = (size.height or (size.width * _HIGH if most * len(groups) > 1 else _TALLEST)) - footer
    tallest = limit if size.height else _TALLEST - footer
    found: list[tuple[tuple[float, float], Layout]] = []
    for across in range(1, most + 1):
        own = [min(across, len(group.titles)) for group in groups]
        shares = [(room + GAP) / count - GAP for count in own]
        if any(share < title for share, title in zip(shares, titles, strict=True)):
            continue
        strips = [-(-len(group.titles) // count) for group, count in zip(groups, own, strict=True)]
        high = MARGIN + sum(strips) * (line + GAP) + sum(columns)  # of all words
        cells = sum(count * len(group.axes[0]) for count, group in zip(strips, groups, strict=True))
        wide = min(share / len(group.axes[1]) for share, group in zip(shares, groups, strict=True))
        # A height that was left open says how many stand side by side, and is exceeded where that makes cells larger.
        planned, cell = (min(wide, (room - high) / cells) for room in (limit, tallest))
        if cell <= 0 and size.height is None:
            planned = cell = wide
        if cell > 0:
            sides = [max(len(group.axes[1]) * cell, title) for group, title in zip(groups, titles, strict=True)]
            layout = Layout(font, cell, step, left, columns, own, [side + GAP for side in sides], high + cells * cell)
            found.append(((min(limit - high - cells * planned, 0), planned), layout))
    return max(found, key=lambda each: each[0], default=(None, None))[1]


def _longest(group: Group, side: int, step: int, words: Words, font: float) -> float:
    """Return how much room the labels of an axis take."""
    return max(words.width(text, font) for text in group.labels(side, step)) + GAP


def is_labelled(groups: Sequence[Group], place: int) -> bool:
    """Return whether the columns of a group are labelled: unless those of the next one are the same."""
    return place == len(groups) - 1 or groups[place].axes[1] != groups[place + 1].axes[1]
