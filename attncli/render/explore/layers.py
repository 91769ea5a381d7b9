"""Layers × heads as a map to walk in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from rich.segment import Segment

from attncli.analysis.metric_names import UNITS
from attncli.render.explore.pane import QUERY, PaneContent
from attncli.render.fit import Bounds, crop, join_facts, part_around
from attncli.render.head_map import PENDING, UNDEFINED, HeadMap, scale_of
from attncli.render.legend import legend_line
from attncli.render.palette import Palette

_LEAST_WITH_LEGEND = 6  # lines
_DIGITS = 2


def layer_map(
    title: str,
    numbers: Mapping[tuple[int, int], float | None],
    layers: Iterable[int],
    shape: tuple[str, int],
    chosen: tuple[int, int],
    palette: Palette,
    room: Bounds,
    meaning: str = "",
) -> PaneContent[tuple[int, int]]:
    """Return the map of a number of each head; what lies at a place of it is a layer and a head.

    The `meaning` says what the number is, and its unit. A head of `layers` that has no number yet is shown as such. The
    `shape` is the kind of attention, and how many heads a layer has.
    """
    kind, count = shape
    map_ = HeadMap.of(numbers, layers, count)
    scale = scale_of([map_])
    has_legend = room.lines >= _LEAST_WITH_LEGEND
    digits = max(len(str(layer)) for layer in map_.layers)
    margin = max(1 + digits, len("head")) + 1
    body = max(room.lines - 2 - has_legend, 1)
    widths = (map_.widest(_DIGITS), 2, 1) if palette.has_color else (2, 1)
    width = next((width for width in widths if margin + width * len(map_.heads) <= room.width), 1)
    at = [*map_.layers].index(chosen[0]), [*map_.heads].index(chosen[1])
    rows = part_around(at[0], len(map_.layers), body)
    columns = part_around(at[1], len(map_.heads), max((room.width - margin) // width, 1))
    names = [f"{QUERY if row == at[0] else ' '}{map_.layers[row]:>{digits}}" for row in rows]
    lattice = map_.lattice(rows, columns, width)

    def lines() -> Iterator[Sequence[Segment]]:
        number = numbers.get(chosen)
        shown = UNDEFINED if number is None else f"{number:.4g} {UNITS.get(title, '')}".rstrip()
        facts = [f"{QUERY} {shown}"] * (chosen in numbers)
        facts += [kind] * (kind != "self")
        if len(rows) < len(map_.layers):
            facts.append(f"layers {map_.layers[rows[0]]}–{map_.layers[rows[-1]]} of {len(map_.layers)}")
        if len(columns) < len(map_.heads):
            facts.append(f"heads {map_.heads[columns[0]]}–{map_.heads[columns[-1]]} of {len(map_.heads)}")
        yield join_facts([*facts, meaning], room.width, palette, title)
        drawn = map_.drawn(rows, columns, width, ["head", *names], scale, palette, _DIGITS, at)
        yield from drawn.lines[: body + 1]
        if has_legend:
            blanks = set(np.array(map_.blanks)[~map_.shown].tolist())
            meanings = {PENDING: "not computed yet", UNDEFINED: "not defined"}
            marks = [f"{mark} {meaning}" for mark, meaning in meanings.items() if mark in blanks]
            yield legend_line(scale, marks, palette, room.width, min(width, 2))

    def head_at(line: int, column: int) -> tuple[int, int] | None:
        found = lattice.at(line - 2, column - margin)
        if found is None:
            return None
        places, place = found
        return map_.layers[rows[places.start]], map_.heads[columns[place]]

    return PaneContent(crop(lines(), room), head_at)
