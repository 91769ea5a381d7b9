"""A trace on one screen: its heads as maps, and as many words and numbers around them as there are lines for.

The maps come first, with cells that let each token have its label. The sentence, the tokens and the shapes share the
lines that they leave; then the maps grow, and a matrix in digits stands there where it is there whole. Of a single
query there are no maps, but the sentence of every head, and its heaviest keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby

from attncli.render.block import Block, stack
from attncli.render.cell_grid import NARROW, WIDE, GridCell
from attncli.render.components import Components, MatrixFrame, layer_title, wrap_block
from attncli.render.fit import LONG, Bounds, cost, fit, fit_with_note
from attncli.render.layer_group import LARGE, GridLayout, LayerGroup
from attncli.render.sections import headline, proof_line, shapes_line

_NUMBERS_LEFT_OUT = ["numbers left out"]
_LEAST_LINES = 8  # of a group of maps
_LEAST_SENTENCE = 6  # lines with a blank one, of which narrower cells make room for it
_SENTENCE = 7  # lines that it may take before it leaves half of them to larger maps
_TOP_KEYS = 5  # of the one query that is shown


@dataclass(frozen=True, eq=False, repr=False)
class Dashboard:
    """As much of a trace as one screen has room for."""

    components: Components
    lines: int

    @cached_property
    def shown(self) -> tuple[list[Block], str]:
        """The parts of the view, and a line on what it has no room for; empty where all is shown."""
        if self.components.view.top_keys is not None:
            return fit_with_note(self._listed, self.lines, self._lines_of)
        if self.components.has_image_keys:
            return fit_with_note(self._of_pictures, self.lines, self._lines_of)
        if self.components.has_one_row:
            return fit_with_note(self._of_query, self.lines, self._lines_of)
        return self._mapped()

    @property
    def _has_several(self) -> bool:
        return len(self.components.frames) > 1

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
        short = parts.tokens(has_ids=False, most=1)
        most = self.lines * (parts.room + 3) // 12  # in half of the lines: `0 a` and the gap behind it take 6 cells
        if max(len(parts.trace.query_tokens), len(parts.trace.key_tokens)) > most:
            return [short]
        return [parts.tokens(), parts.tokens(has_ids=False), short]

    @cached_property
    def _shapes(self) -> list[Block]:
        """The shapes of the layers, if all have the same and they say more than what was derived."""
        parts, trace = self.components, self.components.trace
        if trace.origin is not None or any(layer.shapes != trace.layers[0].shapes for layer in trace.layers):
            return []
        return [shapes_line(trace, trace.layers[0], parts.palette, parts.room)]

    @cached_property
    def _proof(self) -> list[Block]:
        """The proof of the layer whose numbers are farthest from the model's, if any has one."""
        proofs = {layer.proof.max_abs_error: layer for layer in self.components.trace.layers if layer.proof}
        lines = [proof_line(proofs[max(proofs)], self.components.palette).plain] if proofs else []
        return [wrap_block("", line, self.components.width) for line in lines]

    def _note(self, facts: Sequence[str]) -> str:
        """Return a line that says what is shown, and what shows the rest; empty where that is everything."""
        begin = f"{self.components.longest} tokens: " if self.components.longest > LONG else ""
        ways = ["--head", *["--layer"] * self._has_several, *["--query"] * (not self.components.has_one_row)]
        choose = f"{' or '.join(filter(None, (', '.join(ways[:-1]), ways[-1])))} narrows it"
        shown = facts[0] if facts == _NUMBERS_LEFT_OUT else f"showing {' and '.join(facts)}"
        return f"{begin}{shown} to fit the screen. --all shows everything; {choose}." if facts else ""

    def _lines_of(self, note: str) -> int:
        """Return how many lines of the screen a note takes, as stderr says it."""
        return len(self._wrapped(f"attn: {note}").lines) if note else 0

    def _wrapped(self, text: str) -> Block:
        return wrap_block("", text, self.components.width, style=None)

    # --- queries without maps ---

    def _of_query(self, lines: int) -> tuple[list[Block], str]:
        """Return the sentence of as many heads as fit, and the heaviest keys of the first layer's where they fit."""
        parts, frames = self.components, self._alike
        every = sum(len(frame.layer.heads) for frame in parts.frames)
        sentence, heads = parts.sentence(frames, lines - cost(self._head), has_legend=True)
        facts = [f"{heads} of {every} heads"] * (heads < every)
        keys = [] if self._has_several else [parts.ranked(frames[0], _TOP_KEYS)]
        return self._with_words([sentence], keys, lines), self._note(facts)

    def _of_pictures(self, lines: int) -> tuple[list[Block], str]:
        """Return where as many heads look as fit, and below them what the query attends to in the text."""
        parts, every = self.components, sum(len(frame.layer.heads) for frame in self.components.frames)
        text = parts.beside_pictures(max(min(lines // 5, _SENTENCE), 1))
        sentence = [] if text is None else [text]
        picture, heads = parts.picture(lines - cost([*self._head, *sentence]))
        facts = [f"{heads} of {every} heads (those that give most to one cell)"] * (heads < every)
        return self._with_words([picture] * bool(picture.lines), sentence, lines), self._note(facts)

    def _listed(self, lines: int) -> tuple[list[Block], str]:
        """Return the heaviest keys of as many queries, of as many heads of the first layer as fit."""
        parts, frame, name = self.components, self.components.frames[0], layer_title(self.components.frames[0].layer)
        title = [wrap_block(name, "", None)] if self._has_several else []
        every, keys = len(frame.layer.heads) * len(frame.rows), min(parts.view.top_keys or 1, len(frame.columns))
        count, most = min(every, max(lines - 2 - cost([*self._head, *title]), 1)), keys
        while len((listed := parts.ranked(frame, most, count)).lines) > count + 2 and most > 1:
            most -= 1  # of keys that stand beside each other
        facts = [f"{most} of {keys} keys"] * (most < keys) + [f"{count} of {every} rows"] * (count < every)
        facts += [f"{name}, one of {len(parts.frames)} layers,"] * self._has_several
        return self._with_words([*title, listed], [], lines), self._note(facts)

    def _with_words(self, body: Sequence[Block], more: Sequence[Block], lines: int) -> list[Block]:
        ranked = [[] if self.components.has_image_keys else self._tokens, more, self._shapes, self._proof]
        tokens, below, shapes, proof = fit(ranked, lines + 1 - cost([*self._head, *body]))
        return [*self._head, *tokens, *shapes, *body, *below, *proof]

    # --- maps ---

    @property
    def _alike(self) -> list[MatrixFrame]:
        """The layers whose sentence is drawn: those of the first kind that is causal, or else of the first."""
        frames = self.components.frames
        kind = next((frame.layer.kind for frame in frames if frame.is_causal), frames[0].layer.kind)
        return [frame for frame in frames if frame.layer.kind == kind]

    @cached_property
    def _groups(self) -> list[LayerGroup]:
        def axes(frame: MatrixFrame) -> tuple[object, ...]:
            return frame.layer.kind, frame.rows.labels, frame.rows.indices, frame.columns.labels, frame.columns.indices

        parts = self.components
        kinds = list(dict.fromkeys(frame.layer.kind for frame in parts.frames))
        groups = groupby(sorted(parts.frames, key=lambda frame: kinds.index(frame.layer.kind)), axes)
        keeps_rows, labels = parts.view.chooses_rows(parts.trace), parts.labels
        return [LayerGroup(list(own), labels, self._has_several, keeps_rows, parts.palette) for _, own in groups]

    def _mapped(self) -> tuple[list[Block], str]:
        # What stands above the maps is known when they are drawn, and those of long texts take long to draw twice.
        room, longest = self.components.room, self.components.longest
        above, needed = 0, 1 + (longest > LONG) * ((room < 100) + (room < 60))
        while above < needed:
            above = needed
            (words, layouts, proof), note = fit_with_note(partial(self._plan, above), self.lines, self._lines_of)
            maps = [group.drawn(self.components, one) for group, one in zip(self._groups, layouts, strict=False)]
            needed = max(len(each.lines) - one.lines for each, one in zip(maps, layouts, strict=True))
        return [*words, *maps, *proof], note

    def _plan(self, above: int, lines: int) -> tuple[tuple[list[Block], list[GridLayout], list[Block]], str]:
        """Return what stands before the maps, how they are laid out, what stands below them, and the note.

        Together they take so many lines, where some of them stand above the maps of each group.
        """
        left = lines + 1 - cost(self._head)  # no blank line below the last part
        has_sentence = self.components.has_sentence(self._alike[0])
        ways = [(left - _LEAST_SENTENCE, cell) for cell in (WIDE, NARROW) if has_sentence]
        ways += [(left, cell) for cell in (WIDE, NARROW, self._groups[0].small)]
        layouts = next((found for lines, cell in ways if (found := self._layouts(lines, above, (cell,)))), [])
        is_whole = bool(layouts)
        layouts = layouts or self._layouts(left, above)
        left -= _cost(layouts, above)
        parts, room = self.components, max(left // 2, min(left, _SENTENCE)) - 1
        shown = {key for group, layout in zip(self._groups, layouts, strict=False) for key in group.shown(layout)}
        alike = [frame.of_heads(shown) for frame in self._alike]
        alike = [frame for frame in alike if frame.layer.heads]
        is_asked = has_sentence and left > 2 and bool(alike)  # lines: its title, a line and a blank one
        sentences = [parts.sentence(alike, room)[0]] if is_asked else []
        sentence, tokens, shapes, proof = fit([sentences, self._tokens, self._shapes, self._proof], left)
        words = [*tokens, *shapes, *sentence]
        left -= cost([*words, *proof])
        if is_whole and (grown := self._layouts(left + _cost(layouts, above), above, LARGE)):
            left += _cost(layouts, above) - _cost(grown, above)
            layouts = grown
        (digits,) = fit([self._digits if is_whole else []], left)
        every, heads = sum(len(group.heads) for group in self._groups), sum(one.heads for one in layouts)
        facts = [f"{heads} of {every} heads (one of each label first)"] * (heads < every)
        facts += [f"{len(layouts)} of {len(self._groups)} kinds of attention"] * (len(layouts) < len(self._groups))
        facts += ["blocks of cells"] * any(one.pool != (1, 1) for one in layouts)
        is_cut = (tokens, shapes, len(digits)) != (self._tokens[:1], self._shapes, not self._has_several)
        facts = facts or _NUMBERS_LEFT_OUT * is_cut
        return ([*self._head, *words, *digits], layouts, proof), self._note(facts)

    def _layouts(self, lines: int, above: int, cells: Sequence[GridCell] | None = None) -> list[GridLayout]:
        """Return how the maps of each group are drawn.

        With `cells` it is every head with every cell of its map, or nothing where they do not fit; without, as much of
        as many groups as there is room for.
        """
        found: list[GridLayout] = []
        groups = self._groups if cells else self._groups[: max(lines // (_LEAST_LINES + above), 1)]
        for group in groups:
            share = lines if cells else lines // (len(groups) - len(found))
            bounds = Bounds(max(share - above - 1, 1), self.components.room)
            layout = group.whole(bounds, cells) if cells else group.best(bounds)
            if layout is None:
                return []
            found.append(layout)
            lines -= layout.lines + above + 1
        return found

    @cached_property
    def _digits(self) -> list[Block]:
        """The first head in digits, with its scores and without, where that is whole in one piece."""
        frame, parts = self.components.frames[0], self.components
        rows, columns = len(frame.rows), len(frame.columns)
        if self._has_several or self.components.longest > LONG or rows > self.lines or columns * 3 > parts.room:
            return []
        wanted = (frozenset({"scores", "weights"}), frozenset({"weights"}))
        drawn = [parts.digits(frame, frame.layer.heads[0], some) for some in wanted if not some & frame.layer.missing]
        return [one for one in drawn if one is not None and len(one.lines) < 2 * (rows + 2)]


def _cost(layouts: Iterable[GridLayout], above: int) -> int:
    return sum(one.lines + above + 1 for one in layouts)
