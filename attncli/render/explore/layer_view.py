"""One layer as the explorer looks at it: its cells, pooled where they are many, and which number each colour is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.analysis.alignment import LayerPair, alignments, layer_pairs
from attncli.attention import CELLS, row_blocks
from attncli.render.axes import Axis
from attncli.render.cell_grid import CellGrid, GridCell
from attncli.render.explore.pane import ALONE
from attncli.render.heatmap import Extent, Heatmap, in_blocks, marks_of
from attncli.render.palette import Scale
from attncli.trace.layer import LayerTrace, Stages
from attncli.trace.tokens import Tokens
from attncli.trace.trace import Trace

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from attncli.trace.view import Ramp

    _Part = tuple[
        Float[np.ndarray, "H R C"],
        Bool[np.ndarray, "H R C"],
        Float[np.ndarray, "H K"],
        list[frozenset[str]],
        Bool[np.ndarray, "H Q"],
    ]

_MOST = 256  # rows and columns of a head that are kept; of more, blocks


class _Pooled(NamedTuple):
    """What is kept of all heads.

    Attributes:
        steps: how many rows and columns a cell stands for.
        marks: what is odd about the cells of each head.
        values: what a cell says.
        allowed: whether it counts.
        highest: the largest finite size in each column.
        blind: which queries of each head may attend to no key.
    """

    steps: tuple[int, int]
    marks: list[frozenset[str]]
    values: Float[np.ndarray, "H R C"]
    allowed: Bool[np.ndarray, "H R C"]
    highest: Float[np.ndarray, "H K"]
    blind: Bool[np.ndarray, "H Q"]


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
        """Make what drawing needs, and return the sight itself."""
        _ = self._pooled_heads
        return self

    @cached_property
    def tokens(self) -> tuple[Tokens, Tokens]:
        """What the queries and the keys are."""
        return self.trace.sides(self.layer)

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
        pair = next((pair for pair in found if pair.place == (self.layer.layer, self.layer.kind)), None)
        return pair if pair and pair.first.num_heads == self.layer.num_heads else None

    @cached_property
    def alone(self) -> tuple[frozenset[int], frozenset[int]]:
        """The queries and the keys without a counterpart in what is held."""
        if self.pair is None:
            return frozenset(), frozenset()
        rows, columns = ({mine for _, mine in pairs} for pairs in (self.pair.chosen, self.pair.columns.pairs))
        queries, keys = map(range, self.size)
        return frozenset(queries) - rows, frozenset(keys) - columns

    # --- cells ---

    def cells(self, head: int, rows: range) -> Heatmap:
        """Return some rows of a head, with all keys."""
        values, allowed, _ = self._derived((head,), np.array(rows))
        return Heatmap("", values[0], allowed[0])

    def pooled(self, head: int, rows: range, columns: range) -> Heatmap:
        """Return the blocks of a head that begin at these rows and columns, each its largest value.

        What is kept tells blocks of a multiple of its step; smaller ones are derived once more.
        """
        whole, place = self._pooled_heads, self.layer.heads.index(head)
        steps, ends = whole.steps, [*map(_ends, (rows, columns), self.size)]
        if any(each.step % step or each.start % step for each, step in zip((rows, columns), steps, strict=True)):
            found, steps = self.cells(head, range(*ends[0])), (1, 1)
            values, allowed = (array[:, slice(*ends[1])] for array in found[1:3])
        else:
            part = tuple(
                slice(start // step, -(-stop // step)) for (start, stop), step in zip(ends, steps, strict=True)
            )
            values, allowed = whole.values[place][part], whole.allowed[place][part]
        pool = rows.step // steps[0], columns.step // steps[1]
        values, allowed = in_blocks(values, allowed, *pool, self.pair is not None)
        return Heatmap("", values, allowed, Extent(float(whole.highest[place].max()), whole.marks[place]))

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
        steps = self._pooled_heads.steps
        return -(-rows // steps[0]) * steps[0], -(-columns // steps[1]) * steps[1]

    def blind(self, head: int) -> Bool[np.ndarray, " Q"]:
        """Return which queries of a head may attend to no key."""
        return self._pooled_heads.blind[self.layer.heads.index(head)]

    def scale(self, ramp: Ramp | None) -> Scale:
        """Return which number each colour stands for: the ends are those that all views have."""
        scaled = Scale.up_to if self.pair is None else Scale.around_zero
        return scaled(float(self._pooled_heads.highest.max(initial=0.0)), ramp)

    @cached_property
    def _pooled_heads(self) -> _Pooled:
        heads, (queries, keys) = self.layer.heads, self.size
        steps = -(-queries // _MOST), -(-keys // _MOST)
        values, allowed, highest, marks, blind = [], [], [], [], []
        together = max(CELLS // (queries * keys), 1)
        for start in range(0, len(heads), together):
            some = heads[start : start + together]
            parts = list(self._parts(some, steps))
            values.append(np.concatenate([part[0] for part in parts], axis=1))
            allowed.append(np.concatenate([part[1] for part in parts], axis=1))
            blind.append(np.concatenate([part[4] for part in parts], axis=1))
            highest.append(np.max([part[2] for part in parts], axis=0))
            marks += [frozenset().union(*each) for each in zip(*(part[3] for part in parts), strict=True)]
        stacked = (np.concatenate(each) for each in (values, allowed, highest, blind))
        return _Pooled(steps, marks, *stacked)

    def _parts(self, heads: tuple[int, ...], steps: tuple[int, int]) -> Iterator[_Part]:
        """Yield what is kept of some heads, a block of rows at a time."""
        queries, keys = self.size
        most = len(row_blocks(np.arange(queries), keys * len(heads))[0])
        most = max(most // steps[0], 1) * steps[0]  # no block of cells is parted
        for start in range(0, queries, most):
            rows = np.arange(start, min(start + most, queries))
            values, allowed, blind = self._derived(heads, rows)
            sizes = values if self.pair is None else np.abs(values)
            finite = allowed & np.isfinite(sizes)
            highest = np.where(finite, sizes, 0).max(axis=1)
            pooled, counted = in_blocks(values, allowed, *steps, self.pair is not None)
            if self.pair is not None:  # what has no counterpart is no masked cell
                shared = (
                    [place for place, index in enumerate(own) if index not in alone]
                    for own, alone in zip((rows.tolist(), range(keys)), self.alone, strict=True)
                )
                part = np.ix_(np.arange(len(heads)), *(np.array(places, int) for places in shared))
                values, allowed = values[part], allowed[part]
            yield pooled, counted, highest, marks_of(values, allowed), blind

    def _derived(
        self, heads: tuple[int, ...], rows: Int[np.ndarray, " R"]
    ) -> tuple[Float[np.ndarray, "H R K"], Bool[np.ndarray, "H R K"], Bool[np.ndarray, "H R"]]:
        """Return the numbers of heads, which of them count, and which rows may attend to no key.

        Of a difference what has no counterpart does not count.
        """
        stages = Stages(self.layer, heads, rows)
        blind = np.broadcast_to(~stages.mask.any(axis=-1), (len(heads), len(rows)))
        drawn = stages.mask | (stages.weights != 0)
        if self.pair is None:
            return stages.weights, drawn, blind
        values, allowed = np.zeros_like(stages.weights), np.zeros(drawn.shape, bool)
        theirs = {mine: held for held, mine in self.pair.chosen}
        shared = [place for place, row in enumerate(rows.tolist()) if row in theirs]
        if not shared or not self.pair.columns.pairs:
            return values, allowed, blind
        columns = np.array(self.pair.columns.pairs)
        other = Stages(self.pair.first, heads, np.array([theirs[row] for row in rows[shared].tolist()], int))
        mine, held = np.ix_(np.arange(len(heads)), np.array(shared), columns[:, 1]), (..., columns[:, 0])
        with np.errstate(invalid="ignore"):
            values[mine] = stages.weights[mine] - other.weights[held]
        allowed[mine] = drawn[mine] | other.mask[held] | (other.weights[held] != 0)
        return values, allowed, blind


def _ends(starts: range, size: int) -> tuple[int, int]:
    """Return where blocks begin and end."""
    return starts.start, min(starts.start + len(starts) * starts.step, size)


def _boundary(tokens: Tokens) -> int:
    first = sum(token.segment == 0 for token in tokens)
    return first if first < len(tokens) and all(token.segment == 0 for token in tokens[:first]) else 0
