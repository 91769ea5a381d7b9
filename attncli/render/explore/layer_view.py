"""One layer ready to be drawn: its cells, pooled where they are many, and the scale of its colours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from attncli.render.heatmap import Extent, Heatmap, heatmap_of
from attncli.render.matrix import Axis, CellGrid, GridCell
from attncli.render.palette import Scale
from attncli.trace.layer import LayerTrace
from attncli.trace.tokens import Tokens
from attncli.trace.trace import Trace

if TYPE_CHECKING:
    from jaxtyping import Bool

    from attncli.trace.view import Ramp

_MOST = 256  # rows and columns of a head that are kept; of more, blocks


@dataclass(frozen=True, eq=False)
class LayerViewCache:
    """A layer, with the arrays that drawing needs, which are computed once.

    For a long text that takes as long as computing the weights: `prepare` does it beforehand.
    """

    trace: Trace
    layer: LayerTrace

    def prepare(self) -> None:
        """Compute the arrays that drawing needs."""
        _ = self._heads, self._blind

    @cached_property
    def tokens(self) -> tuple[Tokens, Tokens]:
        """The queries and the keys."""
        return self.trace.sides(self.layer)

    @property
    def size(self) -> tuple[int, int]:
        """Number of queries and of keys."""
        return self.layer.num_queries, self.layer.num_keys

    def cells(self, head: int, rows: range) -> Heatmap:
        """Return some rows of a head, with all keys."""
        own = self.layer.head(head, rows)
        weights, drawn = own.weights, own.drawn
        return Heatmap("", weights, drawn, Extent.of(weights, drawn))

    def pooled(self, head: int, steps: tuple[int, int]) -> Heatmap:
        """Return a head in blocks of rows × columns, multiples of `steps_of`, each its largest value."""
        rows, columns = self._steps
        return self._heads[head].pooled(steps[0] // rows, steps[1] // columns)

    def grid(self, steps: tuple[int, int], cell: GridCell) -> CellGrid:
        """Return the places of the cells of a head in blocks of rows × columns."""
        parts = [tuple(range(0, size, step)) for size, step in zip(self.size, steps, strict=True)]
        rows, columns = (Axis(("",) * len(part), part) for part in parts)
        return CellGrid(rows, columns, cell)

    def steps_of(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the least sizes of blocks, no smaller than these, that are kept."""
        return -(-rows // self._steps[0]) * self._steps[0], -(-columns // self._steps[1]) * self._steps[1]

    def blind(self, head: int) -> Bool[np.ndarray, " Q"]:
        """Return which queries of a head are fully masked."""
        return self._blind[self.layer.heads.index(head)]

    def scale(self, ramp: Ramp | None) -> Scale:
        """Return the scale of the colours, with the same ends as in every view."""
        if self.layer.derived is None or self.layer.derived.is_distribution:
            return Scale.up_to(1.0, ramp)
        return Scale.up_to(Extent.joined([head.extent for head in self._heads.values()]).highest, ramp)

    @property
    def _steps(self) -> tuple[int, int]:
        return -(-self.size[0] // _MOST), -(-self.size[1] // _MOST)

    @cached_property
    def _blind(self) -> Bool[np.ndarray, "H Q"]:
        return self.layer.fully_masked(range(self.size[0]))

    @cached_property
    def _heads(self) -> dict[int, Heatmap]:
        """All heads, in blocks."""
        return {head: heatmap_of(self.layer.head(head), slice(None), self._steps) for head in self.layer.heads}
