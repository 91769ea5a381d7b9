"""The whole view of a trace, as a person reads it: what ran, tokens, shapes, numbers, pictures, proof.

In a terminal it is one screen, unless parts or all of it are asked for, and so it is anywhere for a long text. Else a
single query row is walked through in digits, and several have the first head's matrices and every head's map.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from attncli.render.cell_grid import HALF, NARROW
from attncli.render.color_limits import scales_of
from attncli.render.components import Components, MatrixFrame, layer_title
from attncli.render.fit import LINES, LONG
from attncli.render.heatmap import cell_of, heatmap_of, pooling
from attncli.render.palette import BOLD, Palette
from attncli.render.sections import headline, metrics_table, proof_line, shapes_table
from attncli.trace.layer import LayerTrace
from attncli.trace.trace import Trace
from attncli.trace.view import View

if TYPE_CHECKING:
    from attncli.render.dashboard import Dashboard


@dataclass(frozen=True)
class Layout:
    """A trace laid out for one output.

    Attributes:
        trace: what is shown.
        view: what of it is shown.
        palette: how cells look.
        width: cells in a line; None is as many as it takes.
        height: lines of a screen that the view has to fit; None is as many as it takes, unless the text is long.
        is_all: whether all of a long text is shown too.
    """

    trace: Trace
    view: View
    palette: Palette
    width: int | None
    height: int | None = None
    is_all: bool = False

    def renderables(self) -> Iterator[RenderableType]:
        """Yield the view, part by part; a blank line belongs between two parts."""
        yield from self._whole() if self._overview is None else self._overview.renderables()

    def notes(self) -> list[str]:
        """Return what was left out of the view, a sentence each."""
        if self._overview is not None:
            return self._overview.notes()
        return self._pooled_masks() if "mask" in (self.view.show or ()) else []

    def _pooled_masks(self) -> list[str]:
        found = [self._mask_pool(frame) for frame in self._frames]
        pools = dict.fromkeys(f"{rows}×{keys}" for rows, keys in found if rows * keys > 1)
        note = f"each cell drawn of the mask stands for {' or '.join(pools)}; --query or -F json has all of them"
        return [note] if pools else []

    # --- what is there ---

    @cached_property
    def _overview(self) -> Dashboard | None:
        """What one screen shows, where the view has to fit one."""
        is_listed = self.view.top_keys is not None and self.view.chooses_rows(self.trace)
        if self.is_all or self.view.show is not None or is_listed:
            return None
        height = self.height or (LINES if self._is_long else None)
        if height is None:
            return None
        from attncli.render.dashboard import Dashboard
        from attncli.render.header import Header  # which a pipe does not need

        return Dashboard(Header(replace(self._parts, width=self._parts.room), height))

    @cached_property
    def _parts(self) -> Components:
        return Components(self.trace, self.view, self.palette, self.width)

    @cached_property
    def _frames(self) -> list[MatrixFrame]:
        return [self._parts.frame(layer) for layer in self.trace.layers]

    @cached_property
    def _is_long(self) -> bool:
        cells = [self.view.cells(self.trace, layer) for layer in self.trace.layers]
        return max(max(len(each.rows), len(each.columns)) for each in cells) > LONG

    @cached_property
    def _has_one_row(self) -> bool:
        return all(len(frame.rows) == 1 for frame in self._frames)

    def _default(self) -> tuple[str, ...]:
        parts: tuple[str, ...] = ("tokens", "shapes")
        if self.view.top_keys is not None:
            pass
        elif self._has_one_row:
            parts += ("embeddings", "q", "scores", "weights", "output")
        elif len(self.trace.layers) == 1 and not self._is_long:
            parts += ("scores", "weights", "heatmap")
        else:
            parts += ("heatmap",)
        parts = (*parts, "proof") if any(layer.proof for layer in self.trace.layers) else parts
        # What derived numbers are is said in words.
        return parts if self.trace.origin is None else tuple(part for part in parts if part != "shapes")

    # --- all that was asked for ---

    def _whole(self) -> Iterator[RenderableType]:
        trace, palette = self.trace, self.palette
        yield headline(trace.recorded, palette)
        if trace.origin is not None:
            yield Text(palette.fit("\n".join(trace.origin.rules)))
        wanted = self.view.parts(self._default())
        if "tokens" in wanted:
            yield self._parts.tokens()
        for frame in self._frames:
            layer = frame.layer
            if len(trace.layers) > 1:
                yield Text(palette.fit(layer_title(layer)), BOLD)
            if "shapes" in wanted:
                yield shapes_table(trace, layer, palette, self.width)
            if "mask" in wanted:
                yield from self._parts.mask(frame, self._mask_pool(frame))
            if self.view.top_keys is not None:
                yield self._parts.ranked(frame, self.view.top_keys)
            yield from self._cells(frame, wanted - layer.missing)
            if "metrics" in wanted:
                yield metrics_table(trace, layer, palette, self.width, self.view.precision)
            if "proof" in wanted:
                yield proof_line(layer, palette)

    def _cells(self, frame: MatrixFrame, wanted: frozenset[str]) -> Iterator[RenderableType]:
        """Yield the matrices of the heads that are printed in digits, and the maps, which share their colours."""
        layer, cells, parts = frame.layer, frame.cells, self._parts
        is_drawn = "heatmap" in wanted or ("weights" in wanted and self.palette.has_color)
        pool = self._pool(frame)
        heads = {head: layer.head(head, cells.rows) for head in layer.heads}
        pictures = {head: heatmap_of(each, cells.of_columns, pool) for head, each in heads.items()} if is_drawn else {}
        scales = scales_of(self.trace, self.view, layer, pictures)
        if "embeddings" in wanted and (inputs := parts.inputs(frame)) is not None:
            yield parts.drawn([inputs])
        for head in self._digit_heads(layer):
            is_one = len(self._digit_heads(layer)) < len(layer.heads)
            note = f"; --head {layer.heads[1]} has another in digits" if is_one else ""
            if (drawn := parts.digits(frame, head, wanted, scales.get(head), note)) is not None:
                yield drawn
        if "output" in wanted and (projected := parts.projected(frame)) is not None:
            yield parts.drawn([projected])
        if "heatmap" in wanted:
            shown = list(pictures.values())
            small = HALF if self.palette.has_halves else NARROW
            cell = cell_of(shown, frame.rows, frame.columns, pool, parts.room, small)
            title = layer.measure + " of every head" * (len(shown) == layer.num_heads > 1)
            title += f", largest of {pool[0]}×{pool[1]}" * (pool != (1, 1))
            yield parts.maps(title, frame, shown, pool, list(scales.values()), cell)

    def _digit_heads(self, layer: LayerTrace) -> tuple[int, ...]:
        """The heads whose matrices are printed: the first one, unless the parts or a single row were asked for."""
        is_asked = self.view.show is not None or self._has_one_row
        return layer.heads if is_asked else layer.heads[:1]

    def _pool(self, frame: MatrixFrame) -> tuple[int, int]:
        """Return how many rows and columns a cell of a map stands for: no more than a line has room for."""
        room = self._parts.room - frame.rows.width - 2
        rows = 1 if self.view.chooses_rows(self.trace) else -(-len(frame.rows) // room)
        return rows, -(-len(frame.columns) // room)

    def _mask_pool(self, frame: MatrixFrame) -> tuple[int, int]:
        return pooling(frame.rows, frame.columns, self._parts.room)
