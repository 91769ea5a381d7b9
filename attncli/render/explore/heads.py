"""All heads small, with the chosen one among them: the maps of a layer, and a metric of layers × heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment

from attncli.analysis import MEANINGS, UNITS, Metric
from attncli.render.block import Bounds, crop, join_facts, padded, part_around
from attncli.render.explore.layer_view import LayerViewCache
from attncli.render.explore.pane import QUERY, PaneContent
from attncli.render.heatmap import legend_line
from attncli.render.matrix import HALF, NARROW, WIDE, Axis, CellGrid, GridCell, map_lines, titled
from attncli.render.palette import BOLD, DIM, Palette, Scale

if TYPE_CHECKING:
    from attncli.trace.view import Ramp

_WITH_NUMBER = GridCell(5, 1)
_UNDEFINED, _PENDING = "-", "·"
_LEAST = 4  # rows and columns of a map, as long as one of that size fits


def small_heads(
    sight: LayerViewCache, head: int, ramp: Ramp | None, palette: Palette, labels: Mapping[int, str], room: Bounds
) -> PaneContent:
    """Return the heads of a layer, each below its number and its label."""
    heads = sight.layer.heads
    steps, cell = _layout(sight, palette, room)
    grid, scale = sight.grid(steps, cell), sight.scale(ramp)
    forms = [
        [f"{form(sight.layer.head_label(each))} {labels.get(each, '')}".rstrip() for each in heads]
        for form in (partial(titled, "head"), str)
    ]
    titles = next((each for each in forms if max(map(cell_len, each)) < grid.width), forms[-1])
    wide = max(grid.width, min(max(map(cell_len, titles)) + 1, room.width))
    high, in_a_strip = len(grid.lines) + 1, max((room.width + 1) // (wide + 1), 1)
    count = in_a_strip * max(room.lines // high, 1)
    first = heads.index(head) // count * count
    shown = heads[first : first + count]
    strips = [shown[start : start + in_a_strip] for start in range(0, len(shown), in_a_strip)]
    name_of = dict(zip(heads, titles, strict=True))

    def lines() -> Iterator[list[Segment]]:
        for strip in strips:
            line = []
            for one in strip:
                text, style = (QUERY + name_of[one], BOLD) if one == head else (name_of[one], None)
                line += [padded(text, wide, style, "<"), Segment(" ")]
            yield line
            pictures = (sight.pooled(one, steps) for one in strip)
            maps = [map_lines(own.values, own.allowed, grid, palette, scale) for own in pictures]
            gap = Segment(" " * (wide - grid.width + 1))
            for parts in zip(*maps, strict=True):
                yield [segment for part in parts for segment in (*part, gap)]

    counted = f"{shown[0]}–{shown[-1]} of {len(heads)} heads" * (len(shown) < len(heads))
    facts = [counted, sight.layer.measure]
    title = join_facts(facts, room.width, titled("layer", sight.layer.label))
    return PaneContent(crop(lines(), room), title, (in_a_strip, 1))


def _layout(sight: LayerViewCache, palette: Palette, room: Bounds) -> tuple[tuple[int, int], GridCell]:
    """Return the smallest blocks, and their cells, with which all heads fit, or else most of them.

    Blocks grow as long as maps can be told apart.
    """
    # Without half characters a cell as square as two of them is a block of two rows.
    small, tall = (HALF, 1) if palette.has_color else (NARROW, 2)
    whole = sight.steps_of(1, 1)
    layouts = [(whole, WIDE), (whole, small)] if whole == (1, 1) else []
    layouts += [(sight.steps_of(times * tall, times), small) for times in range(1, max(sight.size) + 1)]
    best, most = layouts[0], 0
    for steps, cell in layouts:
        grid = sight.grid(steps, cell)
        is_small = min(len(grid.rows) * tall, len(grid.columns)) < min(_LEAST, *sight.size)
        count = ((room.width + 1) // (grid.width + 1)) * (room.lines // (len(grid.lines) + 1))
        if count > most and not (most and is_small):
            best, most = (steps, cell), count
        if most >= len(sight.layer.heads) or (most and is_small):
            break
    return best if most else layouts[-1]


def layer_map(
    metric: Metric,
    numbers: Mapping[tuple[int, int], float | None],
    layers: Sequence[int],
    heads: int,
    chosen: tuple[int, int],
    palette: Palette,
    room: Bounds,
) -> PaneContent:
    """Return the map of a metric of each head.

    Of `numbers`, which are none until they are computed, those are None where the metric is not defined.
    """
    digits = len(str(max(layers)))
    margin = digits + 2
    cells = (_WITH_NUMBER, WIDE, NARROW) if palette.has_color else (WIDE, NARROW)
    cell = next((cell for cell in cells if margin + cell.columns * heads <= room.width), NARROW)
    rows = [layers[place] for place in part_around(layers.index(chosen[0]), len(layers), max(room.lines - 2, 1))]
    columns = [*part_around(chosen[1], heads, max((room.width - margin) // cell.columns, 1))]
    values = np.array([[numbers.get((row, column), np.nan) for column in columns] for row in rows], np.float64)
    row_axis, column_axis = (Axis(("",) * len(part), tuple(part)) for part in (rows, columns))
    grid = CellGrid(row_axis, column_axis, cell)
    top = max((abs(value) for value in numbers.values() if value is not None and np.isfinite(value)), default=0.0)
    scale = Scale.up_to(top if metric in UNITS else 1.0)
    blank, meaning = (_UNDEFINED, "not defined") if numbers else (_PENDING, "not computed yet")

    def lines() -> Iterator[Sequence[Segment]]:
        at = rows.index(chosen[0]), columns.index(chosen[1])
        yield [Segment(" " * margin), *grid.columns.ticks(cell.columns, at[1])]
        drawn = map_lines(values, ~np.isnan(values), grid, palette, scale, at, blank)
        for layer, line in zip(rows, drawn, strict=True):
            mark = QUERY if layer == chosen[0] else " "
            yield [padded(f"{mark}{layer:>{digits}}", margin, DIM, "<"), *line]
        marks = [f"{blank} {meaning}"] * bool(np.isnan(values).any())
        yield legend_line(scale, marks, palette, room.width, min(cell.columns, 2))

    number = numbers.get(chosen)
    text = _UNDEFINED if number is None else f"{number:.4g} {UNITS.get(metric, '')}".rstrip()
    facts = [f"{QUERY} {text}"] * (chosen in numbers)
    facts += [f"layers {rows[0]}–{rows[-1]} of {len(layers)}"] * (len(rows) < len(layers))
    facts += [f"heads {columns[0]}–{columns[-1]} of {heads}"] * (len(columns) < heads)
    title = join_facts([*facts, MEANINGS[metric]], room.width, metric)
    return PaneContent(crop(lines(), room), title)
