"""A metric of every head as a map of layers × heads, with a cursor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from rich.segment import Segment

from attncli.analysis import MEANINGS, UNITS, Metric
from attncli.render.block import Bounds, crop, join_facts, part_around
from attncli.render.explore.pane import QUERY, PaneContent, pad
from attncli.render.heatmap import legend_line
from attncli.render.matrix import NARROW, WIDE, Axis, CellGrid, GridCell, map_lines
from attncli.render.palette import DIM, Palette, Scale

_WITH_NUMBER = GridCell(5, 1)
_UNDEFINED, _PENDING = "-", "·"


def layer_map(
    metric: Metric,
    numbers: Mapping[tuple[int, int], float | None],
    layers: Sequence[int],
    heads: int,
    chosen: tuple[int, int],
    palette: Palette,
    room: Bounds,
) -> PaneContent[tuple[int, int]]:
    """Return the map of a metric of each head; the value at a place is a layer and a head.

    Args:
        metric: of each head.
        numbers: by layer and head; None where it is not defined. Others are not computed yet.
        layers: the rows.
        heads: number of columns.
        chosen: the layer and the head of the cursor.
        palette: the colours.
        room: of the pane.
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

    def blank(row: int, column: int) -> str:
        return _UNDEFINED if (rows[row], columns[column]) in numbers else _PENDING

    def lines() -> Iterator[Sequence[Segment]]:
        at = rows.index(chosen[0]), columns.index(chosen[1])
        yield [Segment(" " * margin), *grid.columns.ticks(cell.columns, palette, at[1])]
        drawn = map_lines(values, ~np.isnan(values), grid, palette, scale, at, blank)
        for layer, line in zip(rows, drawn, strict=True):
            mark = QUERY if layer == chosen[0] else " "
            yield [pad(f"{mark}{layer:>{digits}}", margin, DIM, "left"), *line]
        marks = [f"{_PENDING} not computed yet"] * any(
            (row, column) not in numbers for row in rows for column in columns
        )
        marks += [f"{_UNDEFINED} not defined"] * (None in numbers.values())
        yield legend_line(scale, marks, palette, room.width, min(cell.columns, 2))

    def at(line: int, column: int) -> tuple[int, int] | None:
        place = grid.at(line - 1, column - margin)
        return None if place is None else (rows[place[0].start], columns[place[1]])

    number = numbers.get(chosen)
    text = _UNDEFINED if number is None else f"{number:.4g} {UNITS.get(metric, '')}".rstrip()
    facts = [f"{QUERY} {text}"] * (chosen in numbers)
    facts += [f"layers {rows[0]}–{rows[-1]} of {len(layers)}"] * (len(rows) < len(layers))
    facts += [f"heads {columns[0]}–{columns[-1]} of {heads}"] * (len(columns) < heads)
    title = join_facts([*facts, MEANINGS[metric]], room.width, palette, metric)
    return PaneContent(crop(lines(), room), at, title)
