"""Layers × heads as a map of one number of each, for rankings of heads and to walk in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.segment import Segment

from attncli.render.axes import Axis
from attncli.render.block import Block, block, cell, hstack, in_lines, stack, trimmed
from attncli.render.cell_grid import CellGrid, GridCell, map_lines
from attncli.render.matrix import number_text
from attncli.render.palette import BOLD, DIM, Palette, Scale

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

_GAP = 3  # cells between two maps
_SAME = 1e-9  # between numbers that differ in nothing but their rounding
UNDEFINED, PENDING = "–", "?"


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


def fitted(
    maps: Mapping[str, Mapping[tuple[int, int], float | None]],
    scale: Scale,
    palette: Palette,
    width: int,
    lines: int,
    digits: int,
) -> Block:
    """Return maps of layers × heads below their titles, in the largest cells with which they fit, or the smallest.

    In colour a cell has its number where there is room. Where layers are too many, they are columns, or share lines.
    """
    drawn = Block([], 0)
    upright = {title: HeadMap.of(numbers) for title, numbers in maps.items()}
    turned = {
        title: HeadMap.of({(head, layer): value for (layer, head), value in numbers.items()})
        for title, numbers in maps.items()
    }
    widest = max(one.widest(digits) for one in upright.values()) if palette.has_color else 2
    ways = [(upright, widest, 1), (upright, 2, 1), (turned, widest, 1), (turned, 2, 1), (upright, 1, 1), (turned, 1, 1)]
    for found, size, per_line in [*ways, *[(upright, 1, 2), (turned, 1, 2)] * palette.has_color]:
        letter = "L" if found is upright else "H"
        blocks = []
        for title, one in found.items():
            rows, columns = range(len(one.layers)), range(len(one.heads))
            names = ["H" if letter == "L" else "L", *(f"{letter}{one.layers[row]}" for row in rows[::per_line])]
            grid = one.drawn(rows, columns, size, names, scale, palette, digits, per_line=per_line)
            blocks.append(stack([block([[Segment(title, BOLD)]] * bool(title)), grid]))
        drawn = stack((hstack(line, _GAP) for line in in_lines(blocks, _GAP, width)), gap=1)
        if drawn.width <= width and len(drawn.lines) <= lines:
            break
    return drawn


def scale_of(maps: Iterable[HeadMap]) -> Scale:
    """Return the colours of maps: from the lowest to the highest number of all of them, where these are two."""
    values = np.concatenate([one.values.ravel() for one in maps])
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    return Scale(low, high if high - low > _SAME else low)
