"""Layers × heads as a map to walk in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.segment import Segment

from attncli.analysis.metric_names import UNITS
from attncli.render.axes import Axis
from attncli.render.block import Block, block, cell, trimmed
from attncli.render.cell_grid import CellGrid, GridCell, map_lines
from attncli.render.explore.pane import QUERY, PaneContent
from attncli.render.fit import Bounds, crop, join_facts, part_around
from attncli.render.legend import legend_line
from attncli.render.matrix import number_text
from attncli.render.palette import BOLD, DIM, Palette, Scale

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

_SAME = 1e-9  # between numbers that differ in nothing but their rounding
UNDEFINED, PENDING = "–", "?"

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


class HeadMap(NamedTuple):
    """The heads of one kind of attention."""

    layers: Sequence[int]  # the rows, their indices
    heads: Sequence[int]  # the columns
    values: Float[np.ndarray, "L H"]  # NaN where it is not defined
    blanks: Sequence[Sequence[str]]  # written where there is no number: not defined, not computed yet, or no head

    @classmethod
    def of(cls, numbers: Mapping[tuple[int, int], float | None], layers: Iterable[int] = (), heads: int = 0) -> HeadMap:
        """Return the map of some heads.

        A number is None where it is not defined. There will be these `layers` of so many heads, computed yet or not.
        """
        computed = {layer for layer, _ in numbers}
        rows = sorted(computed | set(layers))
        columns = sorted({head for _, head in numbers} | set(range(heads)))
        values = np.array([[numbers.get((layer, head)) for head in columns] for layer in rows], float)
        blanks = [
            [UNDEFINED if (layer, head) in numbers else "" if layer in computed else PENDING for head in columns]
            for layer in rows
        ]
        return cls(rows, columns, values.reshape(len(rows), len(columns)), blanks)

    @property
    def shown(self) -> Bool[np.ndarray, "L H"]:
        """Which heads have a number."""
        return ~np.isnan(self.values)

    def widest(self, digits: int) -> int:
        """Return how many cells a number takes, with a blank in front of it."""
        texts = [number_text(value, digits) for value in self.values[self.shown].tolist()]
        return max(map(len, (*texts, *map(str, self.heads))), default=1) + 1

    def lattice(self, rows: range, columns: range, width: int, per_line: int = 1) -> CellGrid:
        """Return the cells of a part, given the places of layers and heads and the width of a cell."""
        heads = tuple(self.heads[place] for place in columns)
        layers = tuple(self.layers[place] for place in rows)
        return CellGrid(Axis(("",) * len(layers), layers), Axis(("",) * len(heads), heads), GridCell(width, per_line))

    def drawn(
        self,
        rows: range,
        columns: range,
        width: int,
        names: Sequence[str],
        scale: Scale,
        palette: Palette,
        digits: int,
        cursor: tuple[int, int] | None = None,
        per_line: int = 1,
    ) -> Block:
        """Return a part of the map below the heads that it has; each line begins with its name.

        In cells of more than two characters stand the numbers. A line has one layer, or two as half-blocks.
        """
        lattice = self.lattice(rows, columns, width, per_line)
        values = self.values[np.ix_(rows, columns)]
        at = None if cursor is None else (cursor[0] - rows.start, cursor[1] - columns.start)

        def blank(row: int, column: int) -> str:
            return self.blanks[rows[row]][columns[column]]

        lines = map_lines(values, ~np.isnan(values), lattice, palette, scale, at, blank, digits)
        place = None if at is None else at[1]
        header = lattice.columns.ticks(width, palette, place)
        if width > 2:
            header = [
                cell("▾" * (number == place) + str(head), width, BOLD if number == place else DIM)
                for number, head in enumerate(lattice.columns.indices)
            ]
        margin = max(map(len, names)) + 1
        styles = [DIM, *(BOLD if at and number == at[0] else None for number in range(len(lines)))]
        labelled = zip(names, styles, [header, *lines], strict=True)
        return block(trimmed([cell(name, margin, style, "left"), *line]) for name, style, line in labelled)


def scale_of(maps: Iterable[HeadMap]) -> Scale:
    """Return the colours of maps: from the lowest to the highest number of all of them, where these are two."""
    values = np.concatenate([one.values.ravel() for one in maps])
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    return Scale(low, high if high - low > _SAME else low)
