"""A trace on one screen: its heads as maps, and as many words and numbers around them as there are lines for.

The maps come first. Words give way before they do: ids, then tokens from the middle of their list, then shapes; and a
matrix in digits is there where it is there whole. A single query, or the heaviest keys of some, are listed instead
(`ranked_keys.py`); the words around either are those of `header.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, islice
from typing import NamedTuple

import numpy as np
from rich.console import RenderableType

from attncli.render.axes import Axis, titled
from attncli.render.block import Block
from attncli.render.color_limits import scales_of
from attncli.render.components import Components, MatrixFrame, layer_title
from attncli.render.fit import Bounds, GridLayout, HeadMapGroup, TitleStyle
from attncli.render.header import Header, cost, first_that_fits
from attncli.render.heatmap import Heatmap, heatmap_of
from attncli.render.palette import Scale
from attncli.text import layers_named

_LEAST_LINES = 8  # of a group of maps


class LayerGroup(NamedTuple):
    """Layers whose maps have the same rows and columns.

    Attributes:
        frames: where each layer is drawn.
        rows: their query axis; a row that is blind in a head of one of them is marked.
        several: whether their maps are named by their layer too.
    """

    frames: list[MatrixFrame]
    rows: Axis
    several: bool

    @property
    def titles(self) -> TitleStyle:
        """What stands above the map of each head."""
        names = [
            (frame.layer.label, frame.layer.head_label(head)) for frame in self.frames for head in frame.layer.heads
        ]
        if not self.several:
            return TitleStyle([titled("head", head) for _, head in names], [_short("head", head) for _, head in names])
        return TitleStyle(
            [f"{_short('layer', layer)} {_short('head', head)}" for layer, head in names],
            [f"{layer}.{head}" for layer, head in names],
        )

    @property
    def name(self) -> str:
        """What the layers are called, and what they attend to."""
        layers = [frame.layer for frame in self.frames]
        if len(layers) == 1:
            return layer_title(layers[0])
        return f"{layers_named([each.layer for each in layers])} · {layers[0].kind}"


def _short(what: str, label: int | str) -> str:
    return f"{what[0].upper()}{label}" if isinstance(label, int) else titled(what, label)


class DashboardPlan(NamedTuple):
    """What stands on a screen of maps.

    Attributes:
        tiles: how the maps of each group are drawn that is shown.
        words: above them.
        digits: which of the matrices that there could be in digits.
        proof: below them.
        note: what is left out, and what shows it.
    """

    tiles: list[GridLayout]
    words: list[Block]
    digits: int | None
    proof: list[Block]
    note: str


class _Drawings(NamedTuple):
    """What was made of heads already, while the room for them is looked for.

    Attributes:
        chosen: the heads that differ most, by the group and how many they are.
        pictures: by the layer, the head and the blocks that a cell stands for.
    """

    chosen: dict[tuple[int, int], tuple[tuple[int, int], ...]]
    pictures: dict[tuple[int, int, tuple[int, int]], Heatmap]


@dataclass(frozen=True)
class Dashboard:
    """As much of a trace as one screen has room for.

    Attributes:
        about: what stands around its maps or lists.
    """

    about: Header

    def renderables(self) -> Iterator[RenderableType]:
        """Yield the view, part by part; a blank line belongs between two parts."""
        yield from self._shown[0]

    def notes(self) -> list[str]:
        """Return what the screen has no room for, and what shows it, in one line; nothing where all is shown."""
        return [self._shown[1]] if self._shown[1] else []

    @cached_property
    def _shown(self) -> tuple[list[Block], str]:
        """The parts and the note, which takes lines of the screen too."""
        if self._parts.view.top_keys is None and any(len(frame.rows) > 1 for frame in self._frames):
            return self._maps()
        from attncli.render.ranked_keys import RankedKeys  # which few runs need

        return RankedKeys(self.about).shown()

    # --- what is there ---

    @property
    def _parts(self) -> Components:
        return self.about.parts

    @property
    def _frames(self) -> list[MatrixFrame]:
        return self.about.frames

    @cached_property
    def _groups(self) -> list[LayerGroup]:
        def axes(frame: MatrixFrame) -> tuple[object, ...]:
            return frame.layer.kind, frame.rows.labels, frame.rows.indices, frame.columns.labels, frame.columns.indices

        several = len(self._frames) > 1
        found = []
        for _, each in groupby(sorted(self._frames, key=lambda frame: self._kinds.index(frame.layer.kind)), axes):
            frames = list(each)
            blind = np.concatenate([frame.blind for frame in frames])
            found.append(LayerGroup(frames, frames[0].rows.marking(blind), several))
        return found

    @cached_property
    def _kinds(self) -> list[str]:
        return list(dict.fromkeys(layer.kind for layer in self._parts.trace.layers))

    # --- heads as maps ---

    def _maps(self) -> tuple[list[Block], str]:
        # What stands above the maps is known when they are drawn, and those of long texts take long to draw twice.
        above, needed = 0, 1 + self.about.is_long * ((self._parts.room < 100) + (self._parts.room < 60))
        while above < needed:
            above = needed
            plan = self._planned(above)
            drawn, scale = self._drawn(plan.tiles)
            needed = max(len(each.lines) - one.lines for each, one in zip(drawn, plan.tiles, strict=True))
        numbers = list(self._digits(scale))[plan.digits : plan.digits + 1] if plan.digits is not None else []
        return [*self.about.head, *plan.words, *numbers, *drawn, *plan.proof], plan.note

    def _planned(self, above: int) -> DashboardPlan:
        """Return what stands on the screen, where so many lines stand above the maps of each group."""
        note, plan = "", self._plan(self.about.lines, above)
        while self.about.lines_of(plan.note) > self.about.lines_of(note):
            note = plan.note
            plan = self._plan(self.about.lines - self.about.lines_of(note), above)
        return plan

    def _plan(self, lines: int, above: int) -> DashboardPlan:
        left = lines + 1 - cost(self.about.head)  # no blank line below the last part
        tokens, shapes, digits = self.about.tokens, self.about.shapes, self._sizes_of_digits
        words = [*([tokens[0], *shapes, each] for each in digits), [tokens[0], *shapes]]
        words += [*([each, *shapes] for each in tokens[1:]), *([each] for each in tokens[1:]), []]
        tiles = self._tiles(left, above, words)
        left -= sum(one.lines + above + 1 for one in tiles)
        is_whole = sum(one.heads for one in tiles) == sum(len(frame.layer.heads) for frame in self._frames)
        said, left = first_that_fits(tokens, left)
        others, left = first_that_fits(shapes, left)
        numbers, left = first_that_fits(digits if is_whole else [], left)
        proof, left = first_that_fits(self.about.proof, left)
        is_all = (said, others, len(numbers)) == (tokens[:1], shapes, not self.about.is_many)
        place = digits.index(numbers[0]) if numbers else None
        return DashboardPlan(tiles, [*said, *others], place, proof, self._note_of_maps(tiles, is_all))

    @cached_property
    def _subjects(self) -> list[HeadMapGroup]:
        """How the maps of each group can be drawn."""
        keeps_rows, palette = self._parts.view.chooses_rows(self._parts.trace), self._parts.palette
        return [
            HeadMapGroup(group.titles, group.rows, group.frames[0].columns, keeps_rows, palette)
            for group in self._groups
        ]

    def _tiles(self, lines: int, legend: int, words: Sequence[Sequence[Block]]) -> list[GridLayout]:
        """Return how the maps of each group are drawn that is shown.

        Args:
            lines: how many there are for words and maps, with a blank one below each.
            legend: how many of them what stands above the maps of a group takes.
            words: what stands beside the maps, each with less of it; the last ones give way to no smaller maps.
        """
        for some in words:
            if tiles := self._whole(lines - cost(some), legend):
                return tiles
        best = [self._best(lines - cost(some), legend) for some in (self.about.tokens[-1:], [])]
        return max(best, key=lambda found: sum(one.heads for one in found))

    def _best(self, lines: int, legend: int) -> list[GridLayout]:
        """Return how as much of each group is drawn as fits, of as many groups as there is room for."""
        found = []
        subjects = self._subjects[: max(lines // (_LEAST_LINES + legend), 1)]
        for place, subject in enumerate(subjects):
            share = lines // (len(subjects) - place)
            found.append(subject.best(Bounds(max(share - legend - 1, 1), self._parts.room)))
            lines -= found[-1].lines + legend + 1
        return found

    def _whole(self, lines: int, legend: int) -> list[GridLayout]:
        """Return how all heads of all groups are drawn, every cell of them; nothing where they do not fit."""
        found: list[GridLayout] = []
        for subject in self._subjects:
            tiles = subject.all_heads(Bounds(lines - legend - 1, self._parts.room))
            if tiles is None:
                return []
            found.append(tiles)
            lines -= tiles.lines + legend + 1
        return found

    def _drawn(self, tiles: Sequence[GridLayout]) -> tuple[list[Block], Scale]:
        """Return the maps of each group, and the colours of the first of them."""
        view, trace = self._parts.view, self._parts.trace
        found: list[tuple[LayerGroup, GridLayout, Sequence[tuple[int, int]], list[Heatmap]]] = []
        for group, one in zip(self._groups, tiles, strict=False):
            chosen = self._chosen(group, one.heads)
            found.append((group, one, chosen, [self._picture(group, one, *place) for place in chosen]))
        scales: list[Scale] = []
        for group, _, places, pictures in found:
            for at, frame in enumerate(group.frames):
                own = {head: picture for (place, head), picture in zip(places, pictures, strict=True) if place == at}
                scales += scales_of(trace, view, frame.layer, own).values()
        scales = [max(scales, key=lambda scale: scale.high)] * len(scales)
        blocks, left = [], iter(scales)
        for group, one, _, pictures in found:
            blind = np.concatenate([frame.blind for frame in group.frames])
            frame = group.frames[0]._replace(rows=one.rows, blind=blind)
            own_scales = list(islice(left, len(pictures)))
            blocks.append(self._parts.maps(self._title(group, one), frame, pictures, one.pool, own_scales, one.cell))
        return blocks, scales[0]

    def _chosen(self, group: LayerGroup, count: int) -> tuple[tuple[int, int], ...]:
        """Return the place of the layer and the head, of all heads or of those that differ most."""
        layers = [frame.layer for frame in group.frames]
        every = tuple((place, head) for place, layer in enumerate(layers) for head in layer.heads)
        if count == len(every):
            return every
        if (id(group.frames[0]), count) not in self._made.chosen:
            from attncli.analysis.diverse_heads import most_different  # which few runs need

            self._made.chosen[id(group.frames[0]), count] = most_different(layers, group.rows.indices, count)
        return self._made.chosen[id(group.frames[0]), count]

    def _picture(self, group: LayerGroup, tiles: GridLayout, place: int, head: int) -> Heatmap:
        frame = group.frames[place]
        heads = [(at, each) for at, frame in enumerate(group.frames) for each in frame.layer.heads]
        title = (group.titles.short if tiles.is_short else group.titles.long)[heads.index((place, head))]
        made = self._made.pictures.get((id(frame), head, tiles.pool))
        if made is None:
            made = heatmap_of(frame.layer.head(head, frame.cells.rows), frame.cells.of_columns, tiles.pool)
            self._made.pictures[id(frame), head, tiles.pool] = made
        return made._replace(title=title)

    @cached_property
    def _made(self) -> _Drawings:
        return _Drawings({}, {})

    def _title(self, group: LayerGroup, tiles: GridLayout) -> str:
        """Return what the maps of a group are."""
        heads = len(group.titles.long)
        counted = f"{tiles.heads} of {heads}" if tiles.heads < heads else "every"
        title = f"{group.name} · " if group.several else ""
        title += group.frames[0].layer.measure
        if heads > 1:
            title += f" of {counted} head{'s' * (tiles.heads < heads)}"
        if tiles.pool != (1, 1):
            title += f", largest of {tiles.pool[0]}×{tiles.pool[1]}"
        return title + ", each under its layer.head" * (tiles.is_short and group.several)

    @cached_property
    def _sizes_of_digits(self) -> list[Block]:
        return [] if self.about.is_long else list(self._digits())

    def _digits(self, scale: Scale | None = None) -> Iterator[Block]:
        """Yield the first head in digits, with its scores and without, where that is whole in one piece."""
        frame = self._frames[0]
        rows, columns = len(frame.rows), len(frame.columns)
        if self.about.is_many or rows > self.about.lines or columns * 3 > self._parts.room:
            return
        head, *others = frame.layer.heads
        note = f"; --head {others[0]} has another in digits" if others else ""
        for wanted in (frozenset({"scores", "weights"}), frozenset({"weights"})):
            if wanted & frame.layer.missing:
                continue
            drawn = self._parts.digits(frame, head, wanted, scale, note)
            if drawn is not None and len(drawn.lines) < 2 * (rows + 2):
                yield drawn

    def _note_of_maps(self, tiles: Sequence[GridLayout], has_all_words: bool) -> str:
        groups = self._groups[: len(tiles)]
        heads, drawn = sum(len(frame.layer.heads) for frame in self._frames), sum(one.heads for one in tiles)
        said = []
        if drawn < heads:
            said.append(f"{drawn} of {heads} heads (those that do the most different things)")
        if len(groups) < len(self._groups):
            said.append(f"{len(groups)} of {len(self._groups)} kinds of attention")
        if any(one.pool != (1, 1) for one in tiles):
            said.append("blocks of cells" if said else "maps in blocks of cells")
        if not said and has_all_words:
            return ""
        return self.about.note(said or ["the maps, not for all words and numbers"])
