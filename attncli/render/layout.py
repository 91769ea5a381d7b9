"""The whole view of a trace, as a person reads it: what ran, tokens, shapes, numbers, pictures, proof.

What is shown by default depends on how much there is: one query row is walked through in digits; a short
sentence has the first head's matrices and every head's map; a long one has pooled maps alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.console import RenderableType
from rich.segment import Segment
from rich.text import Text

from attncli.layer import HeadTrace, LayerTrace
from attncli.render.axes import Axis
from attncli.render.block import Block, beside, stack
from attncli.render.heatmap import Picture, drawn_cells, heatmaps, legend, picture_of, pooling, scale_of
from attncli.render.matrix import Matrix, side_by_side
from attncli.render.palette import BOLD, DIM, Palette
from attncli.render.summaries import headline, metrics_table, proof_line, shapes_table, token_list
from attncli.trace import Trace
from attncli.view import Cells, Columns, View

LONG = 64  # more tokens than this are shown pooled, unless asked for in so many words
COMFORTABLE = 100  # cells in a line where the output sets no width


@dataclass(frozen=True)
class Layout:
    """A trace laid out for one output.

    Attributes:
        trace: what is shown.
        view: what of it is shown.
        palette: how cells look.
        width: cells in a line; None is as many as it takes.
    """

    trace: Trace
    view: View
    palette: Palette
    width: int | None

    def renderables(self) -> Iterator[RenderableType]:
        """Yield the view, part by part; a blank line belongs between two parts."""
        trace = self.trace
        yield headline(trace, self.palette)
        wanted = self.view.parts(self._default())
        if "tokens" in wanted:
            yield self._tokens()
        for layer in trace.layers:
            if len(trace.layers) > 1:
                yield Text(self.palette.fit(f"layer {layer.layer} · {layer.kind}"), BOLD)
            if "shapes" in wanted:
                yield shapes_table(trace, layer, self.palette, self.width)
            cells = self.view.cells(trace, layer)
            rows = Axis.of_tokens(cells.row_tokens, cells.rows, self.palette)
            columns = Axis.of_tokens(cells.column_tokens, cells.columns, self.palette)
            pool = pooling(rows, columns, self.width or COMFORTABLE, LONG)
            heads = (layer.head(index, cells.rows) for index in layer.heads)
            # The matrices share the colours of the maps.
            is_drawn = "heatmap" in wanted or ("weights" in wanted and self.palette.has_color)
            pictures = [picture_of(head, cells.of_columns, pool) for head in heads] if is_drawn else []
            yield from self._numbers(layer, cells, wanted - layer.missing, (rows, columns), scale_of(pictures).highest)
            if "heatmap" in wanted:
                yield self._maps(layer, pictures, (rows, columns), pool)
            if "metrics" in wanted:
                yield metrics_table(trace, layer, self.palette, self.width, self.view.precision)
            if "proof" in wanted:
                yield proof_line(layer, self.palette)

    def notes(self) -> list[str]:
        """Return what was left out of the default view, a sentence each."""
        if self.view.show is not None or not self._is_long or len(self._rows) == 1:
            return []
        tokens = max(len(self._rows), len(self._columns))
        return [
            f"{tokens} tokens: matrices are left out and maps show the largest weight of each block of cells; "
            "--show weights, --query or -F tsv has all of them"
        ]

    # --- what is there ---

    @property
    def _rows(self) -> list[int]:
        return self.view.rows(self.trace)

    @property
    def _columns(self) -> list[int]:
        return self.view.columns(self.trace)

    @property
    def _is_long(self) -> bool:
        return max(len(self._rows), len(self._columns)) > LONG

    def _default(self) -> tuple[str, ...]:
        parts: tuple[str, ...] = ("tokens", "shapes")
        if len(self._rows) == 1:
            parts += ("embeddings", "q", "scores", "weights", "output")
        elif self._is_long:
            parts = ("shapes", "heatmap")
        elif len(self.trace.layers) == 1:
            parts += ("scores", "weights", "heatmap")
        else:
            parts += ("heatmap",)
        return (*parts, "proof") if any(layer.proof for layer in self.trace.layers) else parts

    def _digit_heads(self, layer: LayerTrace) -> tuple[int, ...]:
        """The heads whose matrices are printed: the first one, unless the parts or a single row were asked for."""
        is_asked = self.view.show is not None or len(self._rows) == 1
        return layer.heads if is_asked else layer.heads[:1]

    # --- the parts ---

    def _tokens(self) -> RenderableType:
        trace = self.trace
        has_ids = trace.source.kind in {"toy", "pretrained"}  # elsewhere there is no vocabulary
        if trace.query_tokens == trace.key_tokens:
            return token_list(trace.key_tokens, "tokens", self.palette, self.width, has_ids)
        sides = ((trace.query_tokens, "queries"), (trace.key_tokens, "keys"))
        return stack([token_list(tokens, title, self.palette, self.width, has_ids) for tokens, title in sides])

    def _numbers(
        self, layer: LayerTrace, cells: Cells, wanted: frozenset[str], axes: tuple[Axis, Axis], highest: float
    ) -> Iterator[RenderableType]:
        """Yield the matrices of the heads that are printed in digits, side by side as the width allows."""
        rows = axes[0]
        if "embeddings" in wanted and layer.inputs is not None:
            yield self._drawn([self._vectors("embeddings", layer.inputs[cells.rows], rows)])
        for index in self._digit_heads(layer):
            head = layer.head(index, cells.rows)
            matrices = list(self._matrices(head, cells.of_columns, wanted, axes, highest))
            if not matrices:
                continue
            yield Text.assemble((f"head {index}", BOLD), (self._head_note(layer, index, wanted), DIM))
            yield self._drawn(matrices)
        projected = layer.projected(cells.rows) if "output" in wanted else None
        if projected is not None:
            yield self._drawn([self._vectors("projected: concatenated heads·W_o", projected, rows)])

    def _head_note(self, layer: LayerTrace, head: int, wanted: frozenset[str]) -> str:
        heads = f" of {layer.num_heads}"
        if layer.num_groups < layer.num_heads:
            heads += f", reads kv head {layer.head(head).key_head} of {layer.num_groups}"
        if len(self._digit_heads(layer)) < len(layer.heads):
            heads += f"; --head {layer.heads[1]} has another in digits"
        is_cells = wanted & {"scores", "mask", "weights"}
        return self.palette.fit(heads + (" · rows are queries, columns keys" if is_cells else ""))

    def _matrices(
        self, head: HeadTrace, keys: Columns, wanted: frozenset[str], axes: tuple[Axis, Axis], highest: float
    ) -> Iterator[Matrix]:
        rows, columns = axes
        if "q" in wanted:
            yield self._vectors("q", head.q, rows)
        if "k" in wanted:
            yield self._vectors("k", head.k[keys], columns)
        if "v" in wanted:
            yield self._vectors("v", head.v[keys], columns)
        if "scores" in wanted:
            title = "scores, before the mask" if head.layer.scores is None else "scores, masked"
            yield Matrix(title, head.scores[:, keys], rows, columns, head.mask[:, keys])
        if "mask" in wanted:
            allowed = head.mask[:, keys]
            yield Matrix("mask, 1 = attend", allowed, rows, columns, allowed, hide_masked=True)
        if "weights" in wanted:
            shown = drawn_cells(head)[:, keys]
            yield Matrix("weights", head.weights[:, keys], rows, columns, shown, hide_masked=True, highest=highest)
        if "output" in wanted:
            yield self._vectors("output: weights·V", head.output, rows)

    def _vectors(self, title: str, values: np.ndarray[tuple[int, int], np.dtype[np.float32]], rows: Axis) -> Matrix:
        return Matrix(title, values, rows, Axis.of_dimensions(values.shape[1]), what="dimension")

    def _drawn(self, matrices: list[Matrix]) -> Block:
        width = self.width or COMFORTABLE
        return side_by_side(matrices, self.palette, width, self.width is not None, self.view.precision)

    def _maps(
        self, layer: LayerTrace, pictures: list[Picture], axes: tuple[Axis, Axis], pool: tuple[int, int]
    ) -> RenderableType:
        maps = heatmaps(pictures, *axes, pool, self.palette, self.width or COMFORTABLE)
        title = "weights of every head" if len(pictures) == layer.num_heads > 1 else "weights"
        if pool != (1, 1):
            title += f", largest of {pool[0]}×{pool[1]}"
        title = self.palette.fit(title)
        header = [Block([[Segment(title, BOLD)]], len(title)), legend(pictures, self.palette)]
        is_narrow = self.width is not None and sum(part.width + 3 for part in header) > self.width
        return stack([*header, maps] if is_narrow else [beside(header, 3), maps])
