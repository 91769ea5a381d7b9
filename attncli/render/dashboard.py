"""A trace on one screen: its heads as maps, and as many words and numbers around them as there are lines for.

The maps come first. Words give way before they do: ids, then tokens from the middle of their list, then shapes; and a
matrix in digits is there where it is there whole. A single query, or the heaviest keys of some, are listed instead
(`ranked_keys.py`); the words around either are those of `header.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np
from rich.console import RenderableType

from attncli.render.axes import titled
from attncli.render.block import Block
from attncli.render.color_limits import scales_of
from attncli.render.components import Components, MatrixFrame, layer_title
from attncli.render.fit import Bounds, GridLayout, HeadMapGroup, cost, fit, fit_with_note
from attncli.render.header import Header
from attncli.render.heatmap import Heatmap, heatmap_of
from attncli.render.palette import Palette, Scale
from attncli.text import layers_named

_LEAST_LINES = 8  # of a group of maps


@dataclass(frozen=True, eq=False)
class LayerGroup:
    """Layers whose maps have the same rows and columns.

    Attributes:
        frames: where each layer is drawn.
        maps: how their maps can be drawn; a row that is blind in a head of one of them is marked.
        name: what the layers are called, and what they attend to; empty where they are all that are shown.
    """

    frames: list[MatrixFrame]
    maps: HeadMapGroup
    name: str

    @classmethod
    def of(cls, frames: list[MatrixFrame], has_others: bool, keeps_rows: bool, palette: Palette) -> LayerGroup:
        """Return the group of some layers."""
        layers = [frame.layer for frame in frames]
        names = [(layer.label, layer.head_label(head)) for layer in layers for head in layer.heads]
        name = ""
        titles = [titled("head", head) for _, head in names], [_short("head", head) for _, head in names]
        if has_others:
            several = f"{layers_named([each.layer for each in layers])} · {layers[0].kind}"
            name = layer_title(layers[0]) if len(layers) == 1 else several
            long = [f"{_short('layer', layer)} {_short('head', head)}" for layer, head in names]
            titles = long, [f"{layer}.{head}" for layer, head in names]
        rows = frames[0].rows.marking(np.concatenate([frame.blind for frame in frames]))
        return cls(frames, HeadMapGroup(titles, rows, frames[0].columns, keeps_rows, palette), name)

    @cached_property
    def heads(self) -> list[tuple[MatrixFrame, int]]:
        """Each head, with where its layer is drawn."""
        return [(frame, head) for frame in self.frames for head in frame.layer.heads]

    @cached_property
    def _chosen(self) -> dict[int, list[int]]:
        return {}

    @cached_property
    def _drawn(self) -> dict[tuple[int, tuple[int, int]], Heatmap]:
        return {}

    def chosen(self, count: int) -> list[int]:
        """Return the places of all heads, or of as many that differ most."""
        if count == len(self.heads):
            return [*range(count)]
        if count not in self._chosen:
            from attncli.analysis.diverse_heads import most_different  # which few runs need

            found = most_different([frame.layer for frame in self.frames], self.maps.rows.indices, count)
            heads = [(self.frames.index(frame), head) for frame, head in self.heads]
            self._chosen[count] = [heads.index(each) for each in found]
        return self._chosen[count]

    def heatmap(self, place: int, layout: GridLayout) -> Heatmap:
        """Return the map of a head, which is made once while the room for it is looked for."""
        if (place, layout.pool) not in self._drawn:
            frame, head = self.heads[place]
            found = heatmap_of(frame.layer.head(head, frame.cells.rows), frame.cells.of_columns, layout.pool)
            self._drawn[place, layout.pool] = found
        return self._drawn[place, layout.pool]._replace(title=self.maps.titles[layout.is_short][place])

    def title(self, layout: GridLayout) -> str:
        """Return what the maps are."""
        heads = self.maps.heads
        counted = f"{layout.heads} of {heads} heads" if layout.heads < heads else "every head"
        title = f"{self.name} · " if self.name else ""
        title += self.frames[0].layer.measure + f" of {counted}" * (heads > 1)
        title += f", largest of {layout.pool[0]}×{layout.pool[1]}" * (layout.pool != (1, 1))
        return title + ", each under its layer.head" * (layout.is_short and bool(self.name))


def _short(what: str, label: int | str) -> str:
    return f"{what[0].upper()}{label}" if isinstance(label, int) else titled(what, label)


class DashboardPlan(NamedTuple):
    """What stands on a screen of maps.

    Attributes:
        layouts: how the maps of each group are drawn that is shown.
        words: above them.
        digits: the matrices above them, whose colours are not known yet.
        proof: below them.
    """

    layouts: list[GridLayout]
    words: list[Block]
    digits: list[Block]
    proof: list[Block]


@dataclass(frozen=True)
class Dashboard:
    """As much of a trace as one screen has room for.

    Attributes:
        header: what stands around its maps or lists.
    """

    header: Header

    def renderables(self) -> Iterator[RenderableType]:
        """Yield the view, part by part; a blank line belongs between two parts."""
        yield from self._shown[0]

    def notes(self) -> list[str]:
        """Return what the screen has no room for, and what shows it, in one line; nothing where all is shown."""
        return [self._shown[1]] if self._shown[1] else []

    @cached_property
    def _shown(self) -> tuple[list[Block], str]:
        """The parts and the note."""
        if self._components.view.top_keys is None and any(len(frame.rows) > 1 for frame in self.header.frames):
            return self._maps()
        from attncli.render.ranked_keys import RankedKeys  # which few runs need

        return RankedKeys(self.header).shown()

    @property
    def _components(self) -> Components:
        return self.header.components

    @cached_property
    def _groups(self) -> list[LayerGroup]:
        def axes(frame: MatrixFrame) -> tuple[object, ...]:
            return frame.layer.kind, frame.rows.labels, frame.rows.indices, frame.columns.labels, frame.columns.indices

        parts, frames = self._components, self.header.frames
        kinds = list(dict.fromkeys(layer.kind for layer in parts.trace.layers))
        by_kind = groupby(sorted(frames, key=lambda frame: kinds.index(frame.layer.kind)), axes)
        keeps_rows = parts.view.chooses_rows(parts.trace)
        return [LayerGroup.of(list(each), len(frames) > 1, keeps_rows, parts.palette) for _, each in by_kind]

    # --- what fits ---

    def _maps(self) -> tuple[list[Block], str]:
        # What stands above the maps is known when they are drawn, and those of long texts take long to draw twice.
        room = self._components.room
        above, needed = 0, 1 + self.header.is_long * ((room < 100) + (room < 60))
        while above < needed:
            above = needed
            plan, note = self._plan(above)
            drawn, scale = self._drawn(plan.layouts)
            needed = max(len(each.lines) - one.lines for each, one in zip(drawn, plan.layouts, strict=True))
        digits = [list(self._digits(scale))[self._sizes_of_digits.index(each)] for each in plan.digits]
        return [*self.header.blocks, *plan.words, *digits, *drawn, *plan.proof], note

    def _plan(self, above: int) -> tuple[DashboardPlan, str]:
        """Return what stands on the screen, where so many lines stand above the maps of each group, and the note."""
        header, digits = self.header, self._sizes_of_digits
        whole, *shorter = header.tokens
        shapes = header.shapes
        words = [*([whole, *shapes, each] for each in digits), [whole, *shapes]]
        words += [*([each, *shapes] for each in shorter), *([each] for each in shorter), []]

        def planned(lines: int) -> tuple[DashboardPlan, str]:
            left = lines + 1 - cost(header.blocks)  # no blank line below the last part
            layouts = self._layouts(left, above, words)
            left -= sum(one.lines + above + 1 for one in layouts)
            is_whole = sum(one.heads for one in layouts) == sum(group.maps.heads for group in self._groups)
            tokens, shaped, numbers, proof = fit(
                [header.tokens, shapes, digits if is_whole else [], header.proof], left
            )
            is_all = (tokens, shaped, len(numbers)) == ([whole], shapes, not header.is_many)
            return DashboardPlan(layouts, [*tokens, *shaped], numbers, proof), self._note(layouts, is_all)

        return fit_with_note(planned, header.lines, header.lines_of)

    def _layouts(self, lines: int, above: int, words: Sequence[Sequence[Block]]) -> list[GridLayout]:
        """Return how the maps of each group are drawn that is shown.

        Args:
            lines: how many there are for words and maps, with a blank one below each.
            above: how many of them what stands above the maps of a group takes.
            words: what stands beside the maps, each with less of it; the last ones give way to no smaller maps.
        """
        for some in words:
            if layouts := self._whole(lines - cost(some), above):
                return layouts
        best = [self._best(lines - cost(some), above) for some in (self.header.tokens[-1:], [])]
        return max(best, key=lambda layouts: sum(one.heads for one in layouts))

    def _best(self, lines: int, above: int) -> list[GridLayout]:
        """Return how as much of each group is drawn as fits, of as many groups as there is room for."""
        found: list[GridLayout] = []
        groups = self._groups[: max(lines // (_LEAST_LINES + above), 1)]
        for group in groups:
            share = lines // (len(groups) - len(found))
            found.append(group.maps.best(Bounds(max(share - above - 1, 1), self._components.room)))
            lines -= found[-1].lines + above + 1
        return found

    def _whole(self, lines: int, above: int) -> list[GridLayout]:
        """Return how all heads of all groups are drawn, every cell of them; nothing where they do not fit."""
        found: list[GridLayout] = []
        for group in self._groups:
            layout = group.maps.whole(Bounds(lines - above - 1, self._components.room))
            if layout is None:
                return []
            found.append(layout)
            lines -= layout.lines + above + 1
        return found

    def _note(self, layouts: Sequence[GridLayout], has_all_words: bool) -> str:
        heads, drawn = sum(group.maps.heads for group in self._groups), sum(one.heads for one in layouts)
        facts = []
        if drawn < heads:
            facts.append(f"{drawn} of {heads} heads (those that do the most different things)")
        if len(layouts) < len(self._groups):
            facts.append(f"{len(layouts)} of {len(self._groups)} kinds of attention")
        if any(one.pool != (1, 1) for one in layouts):
            facts.append("blocks of cells" if facts else "maps in blocks of cells")
        if not facts and has_all_words:
            return ""
        return self.header.note(facts or ["the maps, not for all words and numbers"])

    # --- what is drawn ---

    def _drawn(self, layouts: Sequence[GridLayout]) -> tuple[list[Block], Scale]:
        """Return the maps of each group, and their colours, which reach to the largest weight of all."""
        parts, scales = self._components, list[Scale]()
        found: list[tuple[LayerGroup, GridLayout, list[Heatmap]]] = []
        for group, layout in zip(self._groups, layouts, strict=False):
            places = group.chosen(layout.heads)
            found.append((group, layout, [group.heatmap(place, layout) for place in places]))
            for frame in group.frames:
                heads = [(group.heads[place], picture) for place, picture in zip(places, found[-1][2], strict=True)]
                own = {head: picture for (where, head), picture in heads if where is frame}
                scales += scales_of(parts.trace, parts.view, frame.layer, own).values()
        scale = max(scales, key=lambda scale: scale.high)
        blocks = []
        for group, layout, pictures in found:
            blind = np.concatenate([frame.blind for frame in group.frames])
            frame = group.frames[0]._replace(rows=layout.rows, blind=blind)
            same = [scale] * len(pictures)
            blocks.append(parts.maps(group.title(layout), frame, pictures, layout.pool, same, layout.cell))
        return blocks, scale

    @cached_property
    def _sizes_of_digits(self) -> list[Block]:
        return [] if self.header.is_long else list(self._digits())

    def _digits(self, scale: Scale | None = None) -> Iterator[Block]:
        """Yield the first head in digits, with its scores and without, where that is whole in one piece."""
        frame = self.header.frames[0]
        rows, columns = len(frame.rows), len(frame.columns)
        if self.header.is_many or rows > self.header.lines or columns * 3 > self._components.room:
            return
        head, *others = frame.layer.heads
        note = f"; --head {others[0]} has another in digits" if others else ""
        for wanted in (frozenset({"scores", "weights"}), frozenset({"weights"})):
            if wanted & frame.layer.missing:
                continue
            drawn = self._components.digits(frame, head, wanted, scale, note)
            if drawn is not None and len(drawn.lines) < 2 * (rows + 2):
                yield drawn
