"""A trace on one screen: its heads as maps, and as many words and numbers around them as there are lines for.

The maps come first. Words give way before they do: ids, then tokens from the middle of their list, then shapes; and a
matrix in digits is there where it is there whole. A single query is walked through in digits where these fit; else, and
where they are asked for, the heaviest keys of some queries are listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
from rich.segment import Segment

from attncli.render.block import Block, block, stack
from attncli.render.components import WALK, Components, MatrixFrame, layer_title, wrap_block
from attncli.render.fit import LONG, Bounds, cost, fit, fit_with_note
from attncli.render.heatmap import scale_of_layer
from attncli.render.layer_group import GridLayout, LayerGroup, most_unlike
from attncli.render.palette import BOLD, Scale
from attncli.render.sections import headline, proof_line, shapes_table

_LEAST_LINES = 8  # of a group of maps
_TOP_KEYS = 5  # of the one query that is shown


@dataclass(frozen=True)
class Dashboard:
    """As much of a trace as one screen has room for."""

    components: Components
    lines: int

    @cached_property
    def shown(self) -> tuple[list[Block], str]:
        """The parts of the view, and a line on what it has no room for; empty where all is shown."""
        most = self.components.view.top_keys
        if most is not None:
            return self._listed(most)
        if any(len(frame.rows) > 1 for frame in self._frames):
            return self._mapped()
        walk = self._walk()
        if walk is not None:
            return walk, ""
        # As many keys of the query as have room beside each other under two titles, where these are three or more.
        lines = 2 + len(self._frames[0].layer.heads)
        fitting = (
            keys
            for keys in range(_TOP_KEYS, 2, -1)
            if len(self.components.ranked(self._frames[0], keys).lines) == lines
        )
        return self._listed(next(fitting, _TOP_KEYS), is_instead=True)

    @cached_property
    def _frames(self) -> list[MatrixFrame]:
        return [self.components.frame(layer) for layer in self.components.trace.layers]

    @cached_property
    def _longest(self) -> int:
        return max(max(len(frame.rows), len(frame.columns)) for frame in self._frames)

    @property
    def _has_several(self) -> bool:
        return len(self._frames) > 1

    # --- words ---

    @cached_property
    def _head(self) -> list[Block]:
        """What ran."""
        trace, palette = self.components.trace, self.components.palette
        ran, *warnings = headline(trace.recorded, palette).plain.split("\n")
        title, _, facts = ran.partition(" · ")
        what = wrap_block(title, f" · {facts}" if facts else "", self.components.width, style=None)
        head = [stack([what, *map(self._wrapped, warnings)])]
        return head if trace.origin is None else [*head, stack(map(self._wrapped, trace.origin.rules))]

    @cached_property
    def _tokens(self) -> list[Block]:
        """The tokens in ever fewer lines."""
        parts = self.components
        short = [parts.tokens(has_ids=False, most=most) for most in (3, 2, 1)]
        most = self.lines * (parts.room + 3) // 12  # in half of the lines: `0 a` and the gap behind it take 6 cells
        if max(len(parts.trace.query_tokens), len(parts.trace.key_tokens)) > most:
            return short
        return [parts.tokens(), parts.tokens(has_ids=False), *short]

    @cached_property
    def _shapes(self) -> list[Block]:
        """The shapes of the layers, if all have the same and they say more than what was derived."""
        parts, trace = self.components, self.components.trace
        if trace.origin is not None or any(layer.shapes != trace.layers[0].shapes for layer in trace.layers):
            return []
        return [shapes_table(trace, trace.layers[0], parts.palette, parts.width)]

    @cached_property
    def _proof(self) -> list[Block]:
        """The proof of the layer whose numbers are farthest from the model's, if any has one."""
        proofs = {layer.proof.max_abs_error: layer for layer in self.components.trace.layers if layer.proof}
        lines = [proof_line(proofs[max(proofs)], self.components.palette).plain] if proofs else []
        return [wrap_block("", line, self.components.width) for line in lines]

    def _note(self, facts: Sequence[str]) -> str:
        """Return a line that says what the screen has room for, and what shows the rest."""
        begin = f"{self._longest} tokens: " if self._longest > LONG else ""
        choose = "--head, --layer and --query choose" if self._has_several else "--head and --query choose"
        return f"{begin}one screen has room for {' and '.join(facts)}; --all shows everything, {choose}"

    def _lines_of(self, note: str) -> int:
        """Return how many lines of the screen a note takes, as stderr says it."""
        return len(self._wrapped(f"attn: {note}").lines) if note else 0

    def _wrapped(self, text: str) -> Block:
        return wrap_block("", self.components.palette.fit(text), self.components.width, style=None)

    # --- queries without maps ---

    def _walk(self) -> list[Block] | None:
        """Return how one query becomes its output in every head; None where that does not fit."""
        frame = self._frames[0]
        if self._has_several or self._longest > LONG or frame.layer.missing & {"q", "output"}:
            return None
        words = [*self._head, self._tokens[0], *self._shapes]
        left = self.lines + 1 - cost(words) - len(frame.layer.heads)
        if left < 0:
            return None
        shown = [*words, *self.components.cells(frame, frozenset(WALK), has_all_heads=True)]
        left = self.lines + 1 - cost(shown)
        return [*shown, *fit([self._proof], left)[0]] if left >= 0 else None

    def _listed(self, most: int, is_instead: bool = False) -> tuple[list[Block], str]:
        """Return the heaviest keys of as many queries, of as many heads of the first layer as fit, and the note.

        Args:
            most: how many keys of each query.
            is_instead: whether they stand for numbers that do not fit.
        """
        frame = self._frames[0]
        heads, rows = len(frame.layer.heads), len(frame.rows)
        name = layer_title(frame.layer)
        title = [block([[Segment(self.components.palette.fit(name), BOLD)]])] if self._has_several else []

        def drawn(lines: int) -> tuple[list[Block], str]:
            left = lines + 1 - cost([*self._head, *title])
            listed, fewer, count, queries = self._table(most, max(left - 1, 1))
            tokens, shapes, proof = fit([self._tokens, self._shapes, self._proof], left - cost([listed]))
            facts = [f"the {most} heaviest keys of each head"] * (is_instead and fewer == most)
            facts += [f"the {fewer} heaviest keys"] * (fewer < most)
            facts += [f"{count} of {heads} heads (those that do the most different things)"] * (count < heads)
            facts += [f"{queries} of {rows} queries"] * (queries < rows)
            facts += [f"{name}, one of {len(self._frames)} layers"] * self._has_several
            return [*self._head, *tokens, *shapes, *title, listed, *proof], self._note(facts) if facts else ""

        return fit_with_note(drawn, self.lines, self._lines_of)

    def _table(self, most: int, lines: int) -> tuple[Block, int, int, int]:
        """Return as much of the heaviest keys as lines have room for: how many keys, of how many heads and queries."""
        frame = self._frames[0]
        rows = len(frame.rows)
        listed = min(len(frame.layer.heads) * rows, lines)
        while True:
            count, queries = (listed // rows, rows) if listed >= rows else (1, listed)
            heads = [head for _, head in most_unlike([frame.layer], frame.rows.indices, count)]
            drawn = self.components.ranked(frame, most, heads, queries)
            if len(drawn.lines) <= lines or (listed == 1 and most == 1):
                return drawn, most, count, queries
            if listed == 1:
                most = max(most // 2, 1)
                continue
            each = -(-(len(drawn.lines) - 1) // (count * queries + 1))  # lines of a query, as of the titles
            listed = max(min((lines - 1) // each - 1, listed - 1), 1)

    # --- maps ---

    @cached_property
    def _groups(self) -> list[LayerGroup]:
        def axes(frame: MatrixFrame) -> tuple[object, ...]:
            return frame.layer.kind, frame.rows.labels, frame.rows.indices, frame.columns.labels, frame.columns.indices

        parts = self.components
        kinds = list(dict.fromkeys(layer.kind for layer in parts.trace.layers))
        by_kind = groupby(sorted(self._frames, key=lambda frame: kinds.index(frame.layer.kind)), axes)
        keeps_rows = parts.view.chooses_rows(parts.trace)
        return [LayerGroup(list(each), self._has_several, keeps_rows, parts.palette) for _, each in by_kind]

    def _mapped(self) -> tuple[list[Block], str]:
        # What stands above the maps is known when they are drawn, and those of long texts take long to draw twice.
        room = self.components.room
        above, needed = 0, 1 + (self._longest > LONG) * ((room < 100) + (room < 60))
        while above < needed:
            above = needed
            (layouts, words, digits, proof), note = self._plan(above)
            maps, scale = self._drawn(layouts)
            needed = max(len(each.lines) - one.lines for each, one in zip(maps, layouts, strict=True))
        if digits:  # with the colours, which are known now
            digits = [list(self._digits(scale))[self._uncolored.index(digits[0])]]
        return [*self._head, *words, *digits, *maps, *proof], note

    def _plan(self, above: int) -> tuple[tuple[list[GridLayout], list[Block], list[Block], list[Block]], str]:
        """Return what stands on the screen, where so many lines stand above the maps of each group, and the note.

        It is how the maps of each group are drawn that is shown, words and matrices above them, and the proof below.
        """
        digits, shapes = self._uncolored, self._shapes
        whole, *shorter = self._tokens
        words = [*([whole, *shapes, each] for each in digits), [whole, *shapes]]
        words += [*([each, *shapes] for each in shorter), *([each] for each in shorter), []]
        every = sum(len(group.heads) for group in self._groups)

        def planned(lines: int) -> tuple[tuple[list[GridLayout], list[Block], list[Block], list[Block]], str]:
            left = lines + 1 - cost(self._head)  # no blank line below the last part
            layouts = self._layouts(left, above, words)
            left -= sum(one.lines + above + 1 for one in layouts)
            heads = sum(one.heads for one in layouts)
            ranked = [self._tokens, shapes, digits if heads == every else [], self._proof]
            tokens, shaped, numbers, proof = fit(ranked, left)
            facts = [f"{heads} of {every} heads (those that do the most different things)"] * (heads < every)
            facts += [f"{len(layouts)} of {len(self._groups)} kinds of attention"] * (len(layouts) < len(self._groups))
            if any(one.pool != (1, 1) for one in layouts):
                facts.append("blocks of cells" if facts else "maps in blocks of cells")
            if not facts and (tokens, shaped, len(numbers)) != ([whole], shapes, not self._has_several):
                facts.append("the maps, not for all words and numbers")
            return (layouts, [*tokens, *shaped], numbers, proof), self._note(facts) if facts else ""

        return fit_with_note(planned, self.lines, self._lines_of)

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
        best = [self._best(lines - cost(some), above) for some in (self._tokens[-1:], [])]
        return max(best, key=lambda layouts: sum(one.heads for one in layouts))

    def _best(self, lines: int, above: int) -> list[GridLayout]:
        """Return how as much of each group is drawn as fits, of as many groups as there is room for."""
        found: list[GridLayout] = []
        groups = self._groups[: max(lines // (_LEAST_LINES + above), 1)]
        for group in groups:
            share = lines // (len(groups) - len(found))
            found.append(group.best(Bounds(max(share - above - 1, 1), self.components.room)))
            lines -= found[-1].lines + above + 1
        return found

    def _whole(self, lines: int, above: int) -> list[GridLayout]:
        """Return how all heads of all groups are drawn, every cell of them; nothing where they do not fit."""
        found: list[GridLayout] = []
        for group in self._groups:
            layout = group.whole(Bounds(lines - above - 1, self.components.room))
            if layout is None:
                return []
            found.append(layout)
            lines -= layout.lines + above + 1
        return found

    def _drawn(self, layouts: Sequence[GridLayout]) -> tuple[list[Block], Scale]:
        """Return the maps of each group, and their colours, which reach to the largest weight of all."""
        parts, scales = self.components, list[Scale]()
        found = [(group, layout, group.heatmaps(layout)) for group, layout in zip(self._groups, layouts, strict=False)]
        for group, _, pictures in found:
            for frame in group.frames:
                heads = [(group.heads[place], picture) for place, picture in pictures.items()]
                own = {head: picture for (where, head), picture in heads if where is frame}
                scales.append(scale_of_layer(parts.trace, parts.view, frame.layer, own))
        scale = max(scales, key=lambda scale: scale.high)
        blocks = []
        for group, layout, pictures in found:
            blind = np.concatenate([frame.blind for frame in group.frames])
            frame = group.frames[0]._replace(rows=layout.rows, blind=blind)
            blocks.append(parts.maps(group.title(layout), frame, [*pictures.values()], layout.pool, scale, layout.cell))
        return blocks, scale

    @cached_property
    def _uncolored(self) -> list[Block]:
        return [] if self._longest > LONG else list(self._digits())

    def _digits(self, scale: Scale | None = None) -> Iterator[Block]:
        """Yield the first head in digits, with its scores and without, where that is whole in one piece."""
        frame = self._frames[0]
        rows, columns = len(frame.rows), len(frame.columns)
        if self._has_several or rows > self.lines or columns * 3 > self.components.room:
            return
        head, *others = frame.layer.heads
        note = f"; --head {others[0]} has another in digits" if others else ""
        for wanted in (frozenset({"scores", "weights"}), frozenset({"weights"})):
            if wanted & frame.layer.missing:
                continue
            drawn = self.components.digits(frame, head, wanted, scale, note)
            if drawn is not None and len(drawn.lines) < 2 * (rows + 2):
                yield drawn
