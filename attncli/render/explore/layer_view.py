"""One layer as the explorer looks at it: its cells, pooled where they are many, and which number each colour is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from attncli.analysis.alignment import LayerPair, alignments, layer_pairs
from attncli.attention import row_blocks
from attncli.render.axes import Axis
from attncli.render.cell_grid import CellGrid, GridCell
from attncli.render.explore.pane import ALONE
from attncli.render.heatmap import Extent, Heatmap, joined
from attncli.render.palette import Scale
from attncli.trace.layer import LayerTrace
from attncli.trace.tokens import Token, Tokens
from attncli.trace.top_keys import drawn_cells
from attncli.trace.trace import Trace

if TYPE_CHECKING:
    from jaxtyping import Bool

    from attncli.render.fit import Bounds
    from attncli.render.picture import Pixels
    from attncli.trace.layout import SideLayout
    from attncli.trace.view import Ramp

_MOST = 256  # rows and columns of a head that are kept; of more, blocks


@dataclass(frozen=True, eq=False)
class LayerViewCache:
    """A layer, or how it differs from that of another text; what drawing needs is made once, and kept.

    Of a long text that takes as long as computing its weights: `prepare` does it beforehand.

    Attributes:
        trace: whose layer it is.
        layer: the layer.
        held: what it is compared with: the trace of another text that has this layer; None shows the layer itself.
    """

    trace: Trace
    layer: LayerTrace
    held: Trace | None = None

    def prepare(self) -> LayerViewCache:
        """Make what drawing needs, and return the view itself."""
        _ = self._heads, self._blind
        return self

    @cached_property
    def tokens(self) -> tuple[Tokens, Tokens]:
        """What the queries and the keys are."""
        return self.trace.sides(self.layer)

    @cached_property
    def layout(self) -> SideLayout | None:
        """Which keys are cells of pictures; None where none are."""
        return self.trace.layout("key") if self.trace.has_images(self.layer) else None

    @cached_property
    def resized(self) -> dict[tuple[int, Bounds], Pixels]:
        """The pixels of pictures, by number and size; kept, for a large picture takes long."""
        return {}

    def cell_name(self, token: Token) -> str:
        """Return where in a picture a token stands, behind a blank; empty where it is no cell, or is called so."""
        cell = None if self.layout is None else self.layout.cells.get(token.index)
        return "" if cell in (None, token.label) else f" {cell}"

    @property
    def size(self) -> tuple[int, int]:
        """How many queries and keys there are."""
        return self.layer.num_queries, self.layer.num_keys

    @cached_property
    def boundaries(self) -> tuple[int, int]:
        """How many queries and keys come before the second text of a pair; 0 where there is none."""
        rows, columns = map(_boundary, self.tokens)
        return rows, columns

    @cached_property
    def pair(self) -> LayerPair | None:
        """The held layer and this one, and which tokens both have; None where there is no such layer to compare."""
        if self.held is None:
            return None
        sides = alignments(self.held, self.trace)
        found = layer_pairs(self.held, self.trace, sides, sides[0].pairs)
        pair = next((pair for pair in found if pair.layer_kind == (self.layer.layer, self.layer.kind)), None)
        return pair if pair and pair.first.num_heads == self.layer.num_heads else None

    @cached_property
    def alone(self) -> tuple[frozenset[int], frozenset[int]]:
        """The queries and the keys without a counterpart in what is held."""
        if self.pair is None:
            return frozenset(), frozenset()
        rows, columns = ({mine for _, mine in pairs} for pairs in (self.pair.chosen, self.pair.columns.pairs))
        queries, keys = map(range, self.size)
        return frozenset(queries) - rows, frozenset(keys) - columns

    def cells(self, head: int, rows: range) -> Heatmap:
        """Return some rows of a head, with all keys; of a difference what has no counterpart does not count."""
        own = self.layer.head(head, rows)
        weights, drawn = own.weights, drawn_cells(own)
        if self.pair is None:
            return Heatmap("", weights, drawn, Extent.of(weights, drawn))
        values, allowed = np.zeros_like(weights), np.zeros(drawn.shape, bool)
        held_rows = {mine: held for held, mine in self.pair.chosen}
        shared, columns = [row for row in rows if row in held_rows], np.array(self.pair.columns.pairs, int)
        if not shared or not len(columns):
            return Heatmap("", values, allowed)
        other = self.pair.first.head(head, [held_rows[row] for row in shared])
        part = np.ix_(np.array(shared) - rows.start, columns[:, 1])
        with np.errstate(invalid="ignore"):
            values[part] = weights[part] - other.weights[:, columns[:, 0]]
        allowed[part] = drawn[part] | drawn_cells(other)[:, columns[:, 0]]
        return Heatmap("", values, allowed, Extent.of(np.abs(values[part]), allowed[part]))

    def pooled(self, head: int, rows: range, columns: range) -> Heatmap:
        """Return the blocks of a head that begin at these rows and columns, each its largest value.

        What is kept tells blocks of a multiple of its step; smaller ones are derived once more.
        """
        found, steps = self._heads[head], self._steps
        ends = [
            min(part.start + len(part) * part.step, size) for part, size in zip((rows, columns), self.size, strict=True)
        ]
        start = rows.start
        if any(part.step % step or part.start % step for part, step in zip((rows, columns), steps, strict=True)):
            found = self.cells(head, range(rows.start, ends[0]))._replace(extent=found.extent)
            steps, start, ends[0] = (1, 1), 0, ends[0] - rows.start
        part = (
            slice(start // steps[0], -(-ends[0] // steps[0])),
            slice(columns.start // steps[1], -(-ends[1] // steps[1])),
        )
        shown = found._replace(values=found.values[part], allowed=found.allowed[part])
        return shown.pooled(rows.step // steps[0], columns.step // steps[1], self.pair is not None)

    def blank(self, rows: range, columns: range, row: int, column: int) -> str:
        """Return the mark of a block that does not count: it is masked, or what is held has none like it."""
        for part, place, size, alone in zip((rows, columns), (row, column), self.size, self.alone, strict=True):
            if alone and alone.issuperset(range(part[place], min(part[place] + part.step, size))):
                return ALONE
        return "·"

    def lattice(self, rows: range, columns: range, cell: GridCell) -> CellGrid:
        """Return where the cells stand that begin at these rows and columns."""

        def axis(part: range, boundary: int) -> Axis:
            before = sum(start < boundary for start in part)
            return Axis(("",) * len(part), tuple(part), before if before < len(part) else 0)

        return CellGrid(axis(rows, self.boundaries[0]), axis(columns, self.boundaries[1]), cell)

    def steps_of(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the least sizes of blocks, not below what is needed, that what is kept tells."""
        return -(-rows // self._steps[0]) * self._steps[0], -(-columns // self._steps[1]) * self._steps[1]

    def blind(self, head: int) -> Bool[np.ndarray, " Q"]:
        """Return which queries of a head may attend to no key."""
        return self._blind[self.layer.heads.index(head)]

    def scale(self, ramp: Ramp | None) -> Scale:
        """Return which number each colour stands for: the ends are those that all views have."""
        if self.pair is None and (self.layer.derived is None or self.layer.derived.is_distribution):
            return Scale.up_to(1.0, ramp)
        scaled = Scale.up_to if self.pair is None else Scale.around_zero
        return scaled(Extent.joined([head.extent for head in self._heads.values()]).highest, ramp)

    @property
    def _steps(self) -> tuple[int, int]:
        return -(-self.size[0] // _MOST), -(-self.size[1] // _MOST)

    @cached_property
    def _blind(self) -> Bool[np.ndarray, "H Q"]:
        return self.layer.fully_masked(range(self.size[0]))

    @cached_property
    def _heads(self) -> dict[int, Heatmap]:
        """All heads, in blocks."""
        (rows, columns), is_signed = self._steps, self.pair is not None
        found = {}
        for head in self.layer.heads:
            parts = (range(part[0], part[-1] + 1) for part in row_blocks(np.arange(self.size[0]), self.size[1]))
            blocks = [self.cells(head, part).pooled(1, columns, is_signed) for part in parts]
            found[head] = joined("", blocks).pooled(rows, 1, is_signed)
        return found


def _boundary(tokens: Tokens) -> int:
    first = sum(token.segment == 0 for token in tokens)
    return first if first < len(tokens) and all(token.segment == 0 for token in tokens[:first]) else 0
