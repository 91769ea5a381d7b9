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

from attncli.render.components import WALK, Components, MatrixFrame, layer_title
from attncli.render.fit import LINES, LONG
from attncli.render.heatmap import pooling
from attncli.render.palette import BOLD, Palette
from attncli.render.sections import headline, metrics_table, proof_line, shapes_line
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
        yield from self._whole() if self._screen is None else self._screen.shown[0]

    def notes(self) -> list[str]:
        """Return what was left out of the view, a sentence each."""
        if self._screen is not None:
            return [self._screen.shown[1]] if self._screen.shown[1] else []
        found = map(self._mask_pool, self._frames if "mask" in (self.view.show or ()) else ())
        pools = dict.fromkeys(f"{rows}×{keys}" for rows, keys in found if rows * keys > 1)
        note = f"each cell drawn of the mask stands for {' or '.join(pools)}; --query or -F json has all of them"
        return [note] if pools else []

    @cached_property
    def _screen(self) -> Dashboard | None:
        """What one screen shows, where the view has to fit one."""
        is_listed = self.view.top_keys is not None and self.view.chooses_rows(self.trace)
        height = self.height or (LINES if self._is_long else None)
        if self.is_all or self.view.show is not None or is_listed or height is None:
            return None
        from attncli.render.dashboard import Dashboard  # which a pipe does not need

        return Dashboard(replace(self._parts, width=self._parts.room), height)

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
        parts = ["tokens"] if self.trace.origin else ["tokens", "shapes"]  # what derived numbers are is said in words
        if self.view.top_keys is None:
            if self._has_one_row:
                parts += WALK
            elif len(self.trace.layers) == 1 and not self._is_long:
                parts += ["scores", "weights", "heatmap"]
            else:
                parts.append("heatmap")
        return (*parts, *["proof"] * any(layer.proof for layer in self.trace.layers))

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
                yield shapes_line(trace, layer, palette, self._parts.room)
            if "mask" in wanted:
                yield from self._parts.mask(frame, self._mask_pool(frame))
            if self.view.top_keys is not None:
                yield self._parts.ranked(frame, self.view.top_keys)
            if self.view.show is None and not self._is_long and self._parts.has_sentence(frame):
                yield self._parts.sentence([frame], None)[0]
            yield from self._parts.cells(frame, wanted - layer.missing)
            if "metrics" in wanted:
                yield metrics_table(trace, layer, self.width, self.view.precision)
            if "proof" in wanted:
                yield proof_line(layer, palette)

    def _mask_pool(self, frame: MatrixFrame) -> tuple[int, int]:
        return pooling(frame.rows, frame.columns, self._parts.room)
