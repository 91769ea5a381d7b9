"""Layers × heads as a map of one number of each, for `attn heads` and to walk in."""

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
    """The heads of one kind of attention.

    Attributes:
        layers: the rows, their indices.
        heads: the columns.
        values: the number of each; NaN where it is not defined.
        blanks: what is written where there is no number: of a head that has none, of one that is not computed yet, or
            nothing where there is no head.
    """

    layers: Sequence[int]
    heads: Sequence[int]
    values: Float[np.ndarray, "L H"]
    blanks: Sequence[Sequence[str]]

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
        """Return where the cells of a part stand, given the places of layers and heads and the width of a cell."""
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
        """Return a part of the map below the heads that it has, beside what its lines are called.

        In cells of more than two characters stand the numbers. A line has one layer, or two as half-blocks.
        """
        lattice = self.lattice(rows, columns, width, per_line)
        part = np.ix_(rows, columns)
        at = None if cursor is None else (cursor[0] - rows.start, cursor[1] - columns.start)

        def blank(row: int, column: int) -> str:
            return self.blanks[rows[row]][columns[column]]

        lines = map_lines(self.values[part], self.shown[part], lattice, palette, scale, at, blank, digits)
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


class TitledMap(NamedTuple):
    """A map of heads under what its numbers are, in its own colours."""

    title: str
    note: str
    heads: HeadMap
    scale: Scale


def side_by_side(maps: Sequence[TitledMap], palette: Palette, width: int, lines: int, digits: int) -> list[Block]:
    """Return maps in as few rows as they need, in the largest cells with which all of them fit, or else the smallest.

    In colour a cell has its number where there is room, and a line has two layers where maps are too high: all of
    them, or the first half beside the second. A map that is too wide goes on below.
    """
    margin = max(len(f"L{layer}") for one in maps for layer in one.heads.layers) + 1
    most = max(len(one.heads.heads) for one in maps)
    laid_out: list[Block] = []
    widest = max(one.heads.widest(digits) for one in maps) if palette.has_color else 2
    halves = [(1, 2, 1), (1, 2, 2)] if palette.has_color else []
    for size, per_line, towers in ((widest, 1, 1), (2, 1, 1), (1, 1, 1), *halves):
        step = max((width - margin) // size, 1)
        drawn = []
        for title, note, heads, scale in maps:
            high = -(-len(heads.layers) // (towers * per_line)) * per_line
            layers = [range(len(heads.layers))[start : start + high] for start in range(0, len(heads.layers), high)]
            strips = (range(start, min(start + step, len(heads.heads))) for start in range(0, len(heads.heads), step))
            parts = []
            for strip in strips:
                tall = []
                for rows in layers:
                    labels = ["", *(f"L{heads.layers[row]}" for row in rows[::per_line])]
                    tall.append(heads.drawn(rows, strip, size, labels, scale, palette, digits, per_line=per_line))
                parts.append(hstack(tall, _GAP))
            titles = [Segment(title, BOLD), Segment(f" {note}".rstrip(), DIM)]
            drawn.append(stack([block([titles]), *parts]))
        laid_out = [hstack(line, _GAP) for line in in_lines(drawn, _GAP, width)]
        if step >= most and len(stack(laid_out, gap=1).lines) <= lines:
            break
    return laid_out


def scale_of(maps: Iterable[HeadMap]) -> Scale:
    """Return the colours of maps: from the lowest to the highest number of all of them, where these are two."""
    values = np.concatenate([one.values.ravel() for one in maps])
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    return Scale(low, high if high - low > _SAME else low)
