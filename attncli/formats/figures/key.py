"""What stands below the maps of a figure: the colours with weights on them, and what each mark means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from attncli.formats.figures.groups import MARKS, Group, Map, Mark
from attncli.formats.figures.layout import AIR, GAP, MARGIN, Layout
from attncli.formats.figures.size import Size
from attncli.formats.figures.words import Words
from attncli.render.axes import MARK
from attncli.render.legend import ticks
from attncli.render.palette import Scale
from attncli.trace.view import View

_WIDEST_BAR = 90.0
BAR = 6.0  # height of the bar of colours
BAR_HEIGHT = BAR + 14  # with its ticks


class Entry(NamedTuple):
    """One entry of the key: words, and how the cell looks that they explain, if it is about one."""

    words: str
    mark: Mark | None = None
    is_masked: bool = False

    @property
    def has_swatch(self) -> bool:
        """Whether a cell is drawn before its words."""
        return self.is_masked or self.mark is not None


class Key(NamedTuple):
    """What stands below the maps: what the colours say, and what each mark means.

    Attributes:
        ticks: of the bar of colours: how far along it, from 0 to 1, and the weight that stands there.
        bar: its width.
        entries: where each entry stands, from the left end and the top of the bar.
        height: of all of it.
    """

    ticks: list[tuple[float, str]]
    bar: float
    entries: list[tuple[float, float, Entry]]
    height: float

    @classmethod
    def of(
        cls,
        groups: Sequence[Group],
        maps: Sequence[Sequence[Map]],
        view: View,
        is_toy: bool,
        pool: int,
        layout: Layout,
        size: Size,
        words: Words,
    ) -> Key:
        """Return what explains these maps, in as many lines as it takes."""
        font = layout.font
        room = size.width - layout.left - MARGIN
        bar = min(_WIDEST_BAR, room)
        has_own_ends = view.range_ == "head"
        entries = list(_entries(groups, maps, is_toy, pool, has_own_ends))
        swatch = font + 2
        is_beside = room - bar - 3 * GAP >= max(words.width(entry.words, font) + swatch for entry in entries)
        left, y = (bar + 3 * GAP, 0.0) if is_beside else (0.0, BAR_HEIGHT)
        x, placed = left, []
        for entry in entries:
            indent = swatch if entry.has_swatch else 0.0
            first, *others = words.wrapped(entry.words, font, room - left - indent)
            width = words.width(first, font) + indent
            if x > left and (others or x + width > room):
                x, y = left, y + AIR * font
            placed.append((x, y, entry._replace(words=first)))
            x += width + 2 * GAP
            for other in others:
                x, y = left, y + AIR * font
                placed.append((x, y, Entry(other)))
                x += words.width(other, font) + 2 * GAP
        scale = maps[0][0].scale
        if has_own_ends:
            scale = Scale.up_to(1.0, scale.ramp)
        return cls(_ticks(scale, bar, words, font), bar, placed, max(BAR_HEIGHT, y + AIR * font + GAP))


def _entries(
    groups: Sequence[Group], maps: Sequence[Sequence[Map]], is_toy: bool, pool: int, has_own_ends: bool
) -> Iterator[Entry]:
    """Yield what there is to explain: what is drawn, its odd cells, and what is not as it is everywhere."""
    name = ", ".join(filter(None, (groups[0].layer.measure, groups[0].name)))
    yield Entry(name + " as shares of the largest of each, beside its name" * has_own_ends)
    yield Entry("rows are queries, columns keys")
    yield from _found(maps)
    if is_toy:
        yield Entry("random weights: patterns mean nothing")
    if pool > 1:
        yield Entry(f"each cell is the largest of {pool}×{pool}")
    if any(group.axes[0].marked for group in groups):
        yield Entry(f"{MARK} may attend to no key")
    if any(axis.boundary for group in groups for axis in group.axes):
        yield Entry("grey lines: where the second text begins")


def _found(maps: Sequence[Sequence[Map]]) -> Iterator[Entry]:
    """Yield what explains the odd cells that there are."""
    drawn = [each for group in maps for each in group]
    if not all(each.picture.allowed.all() for each in drawn):
        yield Entry("masked", is_masked=True)
    for name, mark in MARKS.items():
        if any(each.odd[name].any() for each in drawn):
            yield Entry(mark.words, mark)


def _ticks(scale: Scale, bar: float, words: Words, font: float) -> list[tuple[float, str]]:
    """Return the ends of the colours, and round numbers between them where they have room."""
    found: list[tuple[float, str]] = []
    taken: list[tuple[float, float]] = []
    for value, text in ticks(scale):
        at, width = float(scale.placed(np.array([value]))[0]), words.width(text, font)
        start = at * bar - width * (at if at in (0, 1) else 0.5)  # the ends are written within the bar
        if all(start + width + GAP < left or start > right + GAP for left, right in taken):
            found.append((at, text))
            taken.append((start, start + width))
    return sorted(found)
