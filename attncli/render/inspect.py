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

from attncli.render.cell_grid import NARROW, WIDE
from attncli.render.components import WALK, Components, layer_title
from attncli.render.fit import LINES, LONG, Bounds
from attncli.render.heatmap import pooling
from attncli.render.layer_group import LayerGroup
from attncli.render.palette import BOLD, Palette
from attncli.render.sections import headline, metrics_table, next_table, proof_line, shapes_line
from attncli.trace.trace import Trace
from attncli.trace.view import View

if TYPE_CHECKING:
    from attncli.render.dashboard import Dashboard

_ENDLESS = 10**6  # lines


@dataclass(frozen=True, eq=False, repr=False)
class Layout:
    """A trace laid out for one output.

    Attributes:
        trace: what is shown.
        view: what of it is shown.
        palette: how cells look.
        width: cells in a line; None is as many as it takes.
        height: lines of a screen that the view has to fit; None is as many as it takes, unless the text is long.
        is_all: whether all of a long text is shown too.
        is_read_aloud: whether sentences stand in the place of maps and tables.
    """

    trace: Trace
    view: View
    palette: Palette
    width: int | None
    height: int | None = None
    is_all: bool = False
    is_read_aloud: bool = False

    def renderables(self) -> Iterator[RenderableType]:
        """Yield the view, part by part; a blank line belongs between two parts."""
        yield from self._whole() if self._screen is None else self._screen.shown[0]

    def notes(self) -> list[str]:
        """Return what was left out of the view, a sentence each."""
        if self._screen is not None:
            return [self._screen.shown[1]] if self._screen.shown[1] else []
        if self._is_in_words:
            frame = max(self._parts.frames, key=lambda frame: len(frame.rows))
            longest, count = len(frame.rows), len(self._parts.rows_read_aloud(frame))
            printed = "the last one is" if count == 1 else f"the last {count} are"
            return [f"{longest} queries: {printed} printed. --query chooses others."] if count < longest else []
        frames = self._parts.frames if "mask" in (self.view.show or ()) else []
        found = [pooling(frame.rows, frame.columns, self._parts.room) for frame in frames]
        pools = dict.fromkeys(f"{rows}×{keys}" for rows, keys in found if rows * keys > 1)
        note = f"each cell drawn of the mask stands for {' or '.join(pools)}; --query or -F json has all of them"
        return [note] if pools else []

    @property
    def _is_in_words(self) -> bool:
        return self.is_read_aloud and (self.view.show is None or "heatmap" in self.view.show)

    @cached_property
    def _screen(self) -> Dashboard | None:
        """What one screen shows, where the view has to fit one."""
        is_listed = self.view.top_keys is not None and self.view.chooses_rows(self.trace)
        height = self.height or (LINES if self._is_long else None)
        if self.is_all or self.is_read_aloud or self.view.show is not None or is_listed or height is None:
            return None
        from attncli.render.dashboard import Dashboard  # which a short text in a pipe spares

        return Dashboard(self._parts if self.width else replace(self._parts, width=self._parts.room), height)

    @cached_property
    def _parts(self) -> Components:
        return Components(self.trace, self.view, self.palette, self.width)

    @property
    def _is_long(self) -> bool:
        return self._parts.longest > LONG

    def _default(self) -> tuple[str, ...]:
        parts = ["tokens"] if self.trace.origin else ["tokens", "shapes"]  # what derived numbers are is said in words
        if self.view.top_keys is None:
            if self._parts.has_one_row:
                parts += WALK
            elif len(self.trace.layers) == 1 and not self._is_long:
                parts += ["scores", "weights", "heatmap"]
            else:
                parts.append("heatmap")
        return (*parts, *["proof"] * any(layer.proof for layer in self.trace.layers))

    def _whole(self) -> Iterator[RenderableType]:
        trace, palette, parts = self.trace, self.palette, self._parts
        yield headline(trace.recorded, palette)
        if trace.origin is not None:
            yield Text("\n".join(trace.origin.rules))
        looks = parts.has_image_keys and self.view.show is None
        if self._is_in_words:
            for frame in parts.frames:
                yield from parts.in_words(frame)
            if parts.has_image_keys:
                yield Text("\n".join(["rows and columns count from 0", *parts.look.facts]))
            return
        if looks and self.view.top_keys is None and not self.is_all:
            yield parts.picture(_ENDLESS)[0]
            if (text := parts.beside_pictures(_ENDLESS)) is not None:
                yield text
            yield proof_line(trace.layers[0], palette)
            return
        wanted = self.view.parts(self._default())
        if "tokens" in wanted:
            yield parts.tokens()
        if "next" in wanted:
            yield next_table(trace, palette, self.width)
        has_sentence = self.view.show is None and self.view.top_keys is None and not self._is_long
        for frame in parts.frames:
            layer = frame.layer
            if len(trace.layers) > 1:
                yield Text(layer_title(layer), BOLD)
            if "shapes" in wanted:
                yield shapes_line(trace, layer, palette, parts.room)
            if "mask" in wanted:
                yield from parts.mask(frame, pooling(frame.rows, frame.columns, parts.room))
            if self.view.top_keys is not None:
                yield parts.ranked(frame, self.view.top_keys)
            if has_sentence and parts.has_sentence(frame):
                yield parts.sentence([frame], _ENDLESS)[0]
            yield from parts.cells(frame, wanted - layer.missing)
            if "heatmap" in wanted - layer.missing:
                keeps_rows = self.view.chooses_rows(trace)
                group, bounds = (
                    LayerGroup([frame], parts.labels, False, keeps_rows, palette),
                    Bounds(_ENDLESS, parts.room),
                )
                yield group.drawn(parts, group.whole(bounds, (WIDE, NARROW)) or group.best(bounds))
            if "metrics" in wanted:
                yield metrics_table(trace, layer, self.width, self.view.precision)
            if "proof" in wanted:
                yield proof_line(layer, palette)
