"""The whole view of a trace: what ran, tokens, shapes, numbers, maps, proof.

In a terminal it is one screen, unless parts or all of it are asked for, and so it is anywhere for a long text. The
lines of a screen are split once: headline, maps of all heads in the largest cells that leave room for tokens and the
sentence, these two, and what is left over for larger cells and shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np
from rich.cells import cell_len
from rich.console import RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from attncli.analysis.metrics import HeadKey, most_telling, strongest
from attncli.render.block import LINES, LONG, Block, Bounds, block, cost, crop, cut, hstack, in_words, stack
from attncli.render.components import TEN, WALK, Components, MatrixFrame, layer_title, wrap_block
from attncli.render.heatmap import GAP, Extent, heatmap_of, heatmaps, legend, legend_line, pooling, size_of
from attncli.render.matrix import HALF, NARROW, WIDE, Axis, GridCell, mark_note, titled
from attncli.render.palette import BOLD, DIM, Palette
from attncli.render.sections import headline, metrics_table, next_table, proof_line, shapes_line
from attncli.render.sentence import head_name
from attncli.text import layers_named
from attncli.trace.trace import Trace
from attncli.trace.view import View

# Cells that are as large as there is room for, with their numbers.
LARGE = (*(GridCell(columns, 1, columns // 2) for columns in range(10, 3, -1)), GridCell(5, 1), GridCell(4, 1))
_PLAIN = 18  # cells each way with which a pattern is still plain: a head that looks at the token before is no diagonal
_LEAST = 8  # with which heads can be told apart at all
_FEW = 4  # heads, rather than larger maps of fewer
_LEGEND = 50  # cells of the colours and the usual marks


class GridLayout(NamedTuple):
    """Size and number of drawn maps."""

    heads: int
    cell: GridCell
    pool: tuple[int, int]  # rows and columns that a cell stands for
    titles: int  # the form of titles, 0 is the longest
    lines: int


@dataclass(frozen=True, eq=False, repr=False)
class LayerGroup:
    """Layers whose maps have the same rows and columns."""

    parts: Components
    frames: list[MatrixFrame]
    has_others: bool  # other layers are shown too, so that it has a name

    @cached_property
    def heads(self) -> dict[HeadKey, MatrixFrame]:
        """Each head, with where its layer is drawn."""
        return {
            (frame.layer.layer, frame.layer.kind, head): frame for frame in self.frames for head in frame.layer.heads
        }

    @cached_property
    def titles(self) -> list[list[tuple[str, str]]]:
        """Ever shorter titles of the heads: the name of each, and its label."""
        names = [(frame.layer, head) for (_, _, head), frame in self.heads.items()]
        short = [head_name(layer, head) for layer, head in names]
        long = short if self.has_others else [titled("head", layer.head_label(head)) for layer, head in names]
        labels = [strongest(self.parts.labels, key) for key in self.heads]
        return [list(zip(*form, strict=True)) for form in ((long, labels), (short, labels), (short, [""] * len(short)))]

    @cached_property
    def rows(self) -> Axis:
        """The query axis; a row that is blind in a head of one of the layers is marked."""
        return self.frames[0].rows.marking(self._blind)

    @property
    def _blind(self) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        return np.concatenate([frame.blind for frame in self.frames])

    def above(self, width: int) -> int:
        """Return how many lines the title and the legend take, with a blank one below the maps."""
        longest = cell_len(self._title(GridLayout(1, WIDE, (99, 99), 0, 0)))
        return 2 if longest + 3 + _LEGEND <= width else 2 + -(-longest // width) if width > _LEGEND else 4

    def shown(self, layout: GridLayout) -> set[HeadKey]:
        """Return the heads whose maps are drawn: those that show most of what the heads do."""
        return most_telling([*self.heads], self.parts.labels, layout.heads)

    def drawn(self, layout: GridLayout) -> Block:
        """Return the maps under what their cells mean."""
        parts = self.parts
        chosen, columns, pictures = self.shown(layout), self.frames[0].columns, []
        for (key, frame), (title, label) in zip(self.heads.items(), self.titles[layout.titles], strict=True):
            if key in chosen:
                head = frame.layer.head(key[2], frame.cells.rows)
                picture = heatmap_of(head, frame.cells.of_columns, layout.pool)
                pictures.append(picture._replace(title=title, label=label))
        extent = Extent.joined([picture.extent for picture in pictures])
        marks = [mark for mark in (*extent.notes_on(parts.scale), mark_note(self._blind)) if mark]
        look = (parts.palette, parts.room)
        maps = heatmaps(pictures, self.rows, columns, layout.pool, *look, parts.scale, layout.cell)
        return stack([self._header(layout, marks), maps])

    def _header(self, layout: GridLayout, marks: Sequence[str]) -> Block:
        parts = self.parts
        width, palette, cells = parts.room, parts.palette, (min(layout.cell.columns, 2), layout.cell == HALF)
        title = stack(block([[Segment(line, BOLD)]]) for line in in_words(self._title(layout), width))
        left = self.above(width) - 1 - len(title.lines)
        if left > 1:
            return stack([title, crop(legend(parts.scale, marks, palette, width, *cells).lines, Bounds(left, width))])
        room = width if left else width - title.width - 3
        key = block([legend_line(parts.scale, marks, palette, max(room, 1), *cells)])
        return stack([title, key]) if left else hstack([title, key], 3)

    def _title(self, layout: GridLayout) -> str:
        heads = sum(frame.layer.num_heads for frame in self.frames)
        counted = f"{layout.heads} of {heads} heads" if layout.heads < heads else "every head"
        layers = [frame.layer for frame in self.frames]
        several = f"{layers_named([each.layer for each in layers])} · {layers[0].kind}"
        title = (layer_title(layers[0]) if len(layers) == 1 else several) + " · " if self.has_others else ""
        title += layers[0].measure + f" of {counted}" * (len(self.heads) > 1)
        return title + f", largest of {layout.pool[0]}×{layout.pool[1]}" * (layout.pool != (1, 1))

    # --- layouts ---

    @property
    def small(self) -> GridCell:
        """The smallest cell."""
        return HALF if self.parts.palette.has_color else NARROW

    def whole(self, bounds: Bounds, cell: GridCell) -> GridLayout | None:
        """Return how the maps of all heads fit in cells of a size, or None where they do not."""
        layout = self._layout(bounds, cell, (1, 1))
        return layout if layout.heads == len(self.heads) else None

    def reduced(self, bounds: Bounds) -> GridLayout:
        """Return how all heads fit in small blocks of cells, or else how some do."""
        least = min(_FEW, len(self.heads))
        pooled = [self._layout(bounds, self.small, pool) for pool in self._pools(bounds)]
        whole = [self._layout(bounds, cell, (1, 1)) for cell in (WIDE, NARROW, self.small)]
        for wanted, layouts in ((len(self.heads), filter(self._is_plain, pooled)), (least, whole), (least, pooled)):
            if found := next((layout for layout in layouts if layout.heads >= wanted), None):
                return found
        most = max(pooled, key=lambda layout: layout.heads)
        return most if most.heads else self.reduced(Bounds(bounds.lines + 1, bounds.width + 1))  # words fill the screen

    def _is_plain(self, layout: GridLayout) -> bool:
        sizes = len(self.rows), len(self.frames[0].columns)
        return min(-(-size // step) for size, step in zip(sizes, layout.pool, strict=True)) >= min(_PLAIN, *sizes)

    def _pools(self, bounds: Bounds) -> Iterator[tuple[int, int]]:
        """Yield the sizes of blocks, the smallest first; of chosen rows, which stand for themselves, of one row too."""
        columns, keeps_rows = len(self.frames[0].columns), self.parts.view.chooses_rows(self.parts.trace)
        longest = max(len(self.rows), columns)
        first = -(-longest // bounds.width) if columns > bounds.width else 1
        for size in dict.fromkeys(
            -(-longest // -(-longest // step)) for step in range(first, -(-longest // _LEAST) + 1)
        ):
            if keeps_rows:
                yield 1, size
            yield size, size

    def _layout(self, bounds: Bounds, cell: GridCell, pool: tuple[int, int]) -> GridLayout:
        rows, columns = self.rows.pooled(pool[0]), self.frames[0].columns.pooled(pool[1])

        def layouts() -> Iterator[GridLayout]:
            for form, titles in enumerate(self.titles):
                widest = max(cell_len(f"{name} {label}".rstrip()) for name, label in titles)
                high, wide = size_of(cell, widest, rows, columns)
                per_strip = max((bounds.width - self.rows.width) // (wide + GAP), 0)
                heads = min(per_strip * ((bounds.lines + 1) // (high + 1)), len(self.heads))
                yield GridLayout(heads, cell, pool, form, -(-heads // max(per_strip, 1)) * (high + 1) - 1)

        return max(layouts(), key=lambda layout: layout.heads)  # the first one, with the longest titles, of equal ones


# --- the view ----------------------------------------------------------------------------------------------

_ENDLESS = 10**6  # lines
_TOKENS, _SENTENCE = 3, 7  # lines that they may take
_LEAST_SENTENCE, _LEAST_MAPS = 4, 8  # lines, without the blank one


@dataclass(frozen=True, eq=False, repr=False)
class Layout:
    """A trace laid out for one output."""

    trace: Trace
    view: View
    palette: Palette
    width: int | None  # cells in a line; None is as many as it takes
    height: int | None = None  # lines of a screen; None is as many as it takes, unless the text is long
    is_all: bool = False  # all of a long text is shown too

    def renderables(self) -> Iterator[RenderableType]:
        """Yield the view, part by part; a blank line belongs between two parts."""
        yield from self._whole() if self._lines is None else self._screen[0]

    def notes(self) -> list[str]:
        """Return what was left out of the view, a sentence each."""
        if self._lines is not None:
            return list(filter(None, [self._screen[1]]))
        if self._is_in_words:
            frame = max(self._parts.frames, key=lambda frame: len(frame.rows))
            longest, count = len(frame.rows), len(self._parts.rows_read_aloud(frame))
            printed = "the last one is" if count == 1 else f"the last {count} are"
            return [f"{longest} queries: {printed} printed. --query chooses others."] if count < longest else []
        return []

    @property
    def _is_in_words(self) -> bool:
        return self.palette.is_read_aloud and (self.view.show is None or "heatmap" in self.view.show)

    @property
    def _lines(self) -> int | None:
        return None if self._has_all else self.height or (LINES if self._parts.longest > LONG else None)

    @property
    def _has_all(self) -> bool:
        is_chosen = self.view.show is not None or self.view.top_keys is not None
        return self.is_all or self.palette.is_read_aloud or is_chosen

    @cached_property
    def _parts(self) -> Components:
        parts = Components(self.trace, self.view, self.palette, self.width)
        return replace(parts, width=parts.room) if parts.longest > LONG and not self._has_all else parts

    # --- all of it ---

    def _default(self) -> tuple[str, ...]:
        is_listed, is_short = self.view.top_keys is not None, self._parts.longest <= LONG
        parts = ["tokens"] if self.trace.origin or is_listed else ["tokens", "shapes"]
        if self._parts.has_one_row and not is_listed:
            parts += WALK if self.is_all or self.trace.source.kind == "toy" else []
        elif not is_listed:
            parts += ["scores", "weights", "heatmap"] if len(self.trace.layers) == 1 and is_short else ["heatmap"]
        return (*parts, *["proof"] * any(layer.proof for layer in self.trace.layers))

    def _whole(self) -> Iterator[RenderableType]:
        trace, parts = self.trace, self._parts
        yield headline(trace.recorded)
        if trace.origin is not None:
            yield Text("\n".join(trace.origin.rules))
        if self._is_in_words:
            for frame in parts.frames:
                yield from parts.in_words(frame)
            if trace.has_image_keys:
                yield Text("\n".join(["rows and columns count from 0", *parts.look.facts]))
            return
        is_default = self.view.show is None and self.view.top_keys is None
        if trace.has_image_keys and is_default and not self.is_all:
            yield parts.look.drawn(Bounds(_ENDLESS, parts.room))[0]
            yield from filter(None, [parts.text_of_pictures(_ENDLESS)])
            yield proof_line(trace.layers[0])
            return
        wanted = self.view.parts(self._default())
        if "tokens" in wanted:
            yield parts.tokens()
        if "next" in wanted:
            yield next_table(trace, self.width)
        if is_query := is_default and parts.has_one_row:
            lines = None if self.is_all else TEN + 3
            yield from (parts.heads_of_query(frames, lines) for frames in self._by_kind)
            if "scores" not in wanted:
                yield from self._proof
                return
        for frame in parts.frames:
            layer = frame.layer
            if len(trace.layers) > 1:
                yield Text(layer_title(layer), BOLD)
            if "shapes" in wanted:
                yield shapes_line(trace, layer, parts.room)
            if "mask" in wanted:
                yield from parts.mask(frame, pooling(frame.rows, frame.columns, parts.room))
            if self.view.top_keys is not None:
                yield parts.ranked(frame, self.view.top_keys)
            if is_default and not is_query and parts.longest <= LONG and parts.has_sentence(frame):
                yield parts.sentence([frame], _ENDLESS)
            yield from parts.cells(frame, wanted - layer.missing)
            if "heatmap" in wanted - layer.missing:
                group, bounds = LayerGroup(parts, [frame], False), Bounds(_ENDLESS, parts.room)
                layout = group.whole(bounds, WIDE) or group.whole(bounds, NARROW) or group.reduced(bounds)
                yield group.drawn(layout)
            if "metrics" in wanted:
                yield metrics_table(trace, layer, self.width, self.view.precision)
            if "proof" in wanted:
                yield proof_line(layer)

    @property
    def _proof(self) -> list[Block]:
        """The proof of the layer whose numbers are farthest from the model's, if any has one."""
        proofs = {layer.proof.max_abs_error: layer for layer in self.trace.layers if layer.proof}
        return [self._wrapped("", proof_line(proofs[max(proofs)]).plain, DIM)] if proofs else []

    # --- one screen ---

    @cached_property
    def _screen(self) -> tuple[list[Block], str]:
        """The parts of the view that one screen has room for, and a note on the rest."""
        head, proof = self._head(), self._proof
        left = (self._lines or LINES) + 1 - cost([*head, *proof])  # no blank line below the last part
        if self.trace.has_image_keys:
            body, facts = self._pictured(left)
        elif self._parts.has_one_row:
            body, facts = self._queried(left), []
        else:
            body, facts = self._mapped(left)
        return [*head, *body, *proof], self._note(facts) if facts else ""

    def _wrapped(self, title: str, facts: str, style: Style | None = None) -> Block:
        return wrap_block(title, facts, self._parts.width, style)

    def _head(self) -> list[Block]:
        ran, *warnings = headline(self.trace.recorded).plain.split("\n")
        title, dot, facts = ran.partition(" · ")
        head = [stack([self._wrapped(title, dot + facts), *(self._wrapped("", each) for each in warnings)])]
        rules = self.trace.origin.rules if self.trace.origin is not None else ()
        return [*head, *[stack(self._wrapped("", each) for each in rules)] * bool(rules)]

    @property
    def _note_lines(self) -> int:
        return 2 if self._parts.room < 100 else 1

    def _note(self, facts: Sequence[str]) -> str:
        """Return what is shown and what shows the rest, in the lines that are reserved."""
        parts = self._parts
        ways = ["--head", *["--layer"] * (len(parts.frames) > 1), *["--query"] * (not parts.has_one_row)]
        choose = " or ".join(filter(None, (", ".join(ways[:-1]), ways[-1])))
        note = f"attn: showing {', '.join(facts)}. --all shows everything; {choose} chooses."
        return cut(note, Bounds(self._note_lines, parts.room)).removeprefix("attn: ")

    def _words(self, lines: int) -> list[Block]:
        words: list[Block] = []
        for part in ([] if self.trace.has_image_keys else [self._parts.tokens()]) + self._shapes:
            words += [part] * (cost([*words, part]) <= lines)
        return words

    @property
    def _shapes(self) -> list[Block]:
        first, *others = self.trace.layers
        if self.trace.origin is not None or any(layer.shapes != first.shapes for layer in others):
            return []
        return [shapes_line(self.trace, first, self._parts.room)]

    @cached_property
    def _by_kind(self) -> list[list[MatrixFrame]]:
        kinds: dict[str, list[MatrixFrame]] = {}
        for frame in self._parts.frames:
            kinds.setdefault(frame.layer.kind, []).append(frame)
        return list(kinds.values())

    def _queried(self, lines: int) -> list[Block]:
        share = lines // len(self._by_kind) - 1
        body = [self._parts.heads_of_query(frames, share) for frames in self._by_kind]
        return [*self._words(lines - cost(body)), *body]

    def _pictured(self, lines: int) -> tuple[list[Block], list[str]]:
        """Return pictures under the weights of as many heads as fit, and below them the text that the query sees."""
        text = self._parts.text_of_pictures(max(min(lines // 5, _SENTENCE), 1))
        every, sentence = sum(len(frame.layer.heads) for frame in self._parts.frames), [] if text is None else [text]
        lines -= self._note_lines
        picture, heads = self._parts.look.drawn(Bounds(lines - cost(sentence) - 1, self._parts.room))
        body = [*[picture] * bool(picture.lines), *sentence]
        facts = [f"{heads} of {every} heads"] * (heads < every)
        return [*self._words(lines - cost(body)), *body], facts

    # --- maps ---

    def _groups(self) -> list[LayerGroup]:
        several, groups = len(self._parts.frames) > 1, []
        for frames in self._by_kind:
            for _, own in groupby(frames, lambda frame: (frame.rows.indices, frame.columns.indices)):
                groups.append(LayerGroup(self._parts, list(own), several))
        return groups

    def _mapped(self, lines: int) -> tuple[list[Block], list[str]]:
        """Return the maps of heads, and as many words and numbers as they leave room for."""
        parts, groups, width = self._parts, self._groups(), self._parts.room
        above, small = groups[0].above(width), groups[0].small
        of_query = next((frames for frames in self._by_kind if frames[0].is_causal), self._by_kind[0])
        has_sentence = parts.has_sentence(of_query[0])
        least = 2 + has_sentence * (_LEAST_SENTENCE + 1)  # a line of tokens, and the sentence
        sizes = [(lines - least, WIDE), (lines - least, NARROW), (lines - least, small), (lines, small)]
        every = sum(len(group.heads) for group in groups)
        layouts = next(filter(None, (_whole(groups, Bounds(room, width), cell) for room, cell in sizes)), [])
        if not (has_all := bool(layouts)):
            lines -= self._note_lines
            shown = groups[: max((lines - least) // (_LEAST_MAPS + above), 1)]
            shares = [max(room // len(shown) - above, 1) for room in (lines - least, lines)]
            found = [[group.reduced(Bounds(share, width)) for group in shown] for share in shares]
            layouts = next((one for one in found if sum(layout.heads for layout in one) == every), found[0])
        left = lines - sum(layout.lines + above for layout in layouts)

        room = min(left - least + 1, _TOKENS)
        tokens = [form for form in (parts.tokens(), parts.tokens(False, max(room, 1))) if len(form.lines) <= room][:1]
        left -= cost(tokens)
        of_kind = sum(len(frame.layer.heads) for frame in of_query)
        keys = {key for group, layout in zip(groups, layouts, strict=False) for key in group.shown(layout)}
        of_query = [frame for frame in (frame.of_heads(keys) for frame in of_query) if frame.layer.heads]
        is_shown = has_sentence and of_query and left > (2 if self.palette.has_color else _LEAST_SENTENCE)
        sentence = [parts.sentence(of_query, min(_SENTENCE, left - 1), of_kind)] if is_shown else []
        left -= cost(sentence)
        if has_all:
            room = left + sum(layout.lines + above for layout in layouts)
            layouts = next(filter(None, (_whole(groups, Bounds(room, width), cell) for cell in LARGE)), layouts)
            left = room - sum(layout.lines + above for layout in layouts)
        shapes = [block for block in self._shapes if cost([block]) <= left]

        heads = sum(layout.heads for layout in layouts)
        facts = [f"{heads} of {every} heads"] * (heads < every)
        facts += [f"{len(layouts)} of {len(groups)} kinds of attention"] * (len(layouts) < len(groups))
        facts += ["pooled cells"] * any(layout.pool != (1, 1) for layout in layouts)
        maps = [group.drawn(layout) for group, layout in zip(groups, layouts, strict=False)]
        return [*tokens, *shapes, *sentence, *maps], facts


def _whole(groups: Sequence[LayerGroup], bounds: Bounds, cell: GridCell) -> list[GridLayout]:
    """Return how the maps of all heads fit in cells of a size, with the lines above each group; empty if they don't."""
    layouts, left = [], bounds.lines
    for group in groups:
        left -= groups[0].above(bounds.width)
        if left < 1 or (layout := group.whole(Bounds(left, bounds.width), cell)) is None:
            return []
        layouts.append(layout)
        left -= layout.lines
    return layouts
