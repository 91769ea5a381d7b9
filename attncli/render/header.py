"""What a screen says of a trace around its numbers: what ran, the tokens, the shapes, the proof, what is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from attncli.render.block import Block, stack
from attncli.render.components import Components, MatrixFrame, wrap_block
from attncli.render.fit import LONG
from attncli.render.sections import headline, proof_line, shapes_table


@dataclass(frozen=True)
class Header:
    """What stands on a screen beside numbers and maps.

    Attributes:
        components: what the view is put together from.
        lines: of the screen, with those of the note.
    """

    components: Components
    lines: int

    @cached_property
    def frames(self) -> list[MatrixFrame]:
        """Where each layer is drawn."""
        return [self.components.frame(layer) for layer in self.components.trace.layers]

    @property
    def is_long(self) -> bool:
        """Whether there are more tokens than a screen shows in digits."""
        return self._longest > LONG

    @property
    def is_many(self) -> bool:
        """Whether there are several layers."""
        return len(self.frames) > 1

    @cached_property
    def blocks(self) -> list[Block]:
        """What ran."""
        trace, palette = self.components.trace, self.components.palette
        ran, *cautions = headline(trace.recorded, palette).plain.split("\n")
        title, _, facts = ran.partition(" · ")
        what = wrap_block(title, f" · {facts}" if facts else "", self.components.width, style=None)
        head = [stack([what, *map(self._wrap, cautions)])]
        return head if trace.origin is None else [*head, stack(map(self._wrap, trace.origin.rules))]

    @cached_property
    def tokens(self) -> list[Block]:
        """The tokens in ever fewer lines."""
        parts = self.components
        if parts.width is None:  # a line holds all of them
            return [parts.tokens(), parts.tokens(has_ids=False)]
        short = [parts.tokens(has_ids=False, most=most) for most in (3, 2, 1)]
        most = self.lines * (parts.width + 3) // 12  # in half of the lines: `0 a` and the gap behind it take 6 cells
        if max(len(parts.trace.query_tokens), len(parts.trace.key_tokens)) > most:
            return short
        return [parts.tokens(), parts.tokens(has_ids=False), *short]

    @cached_property
    def shapes(self) -> list[Block]:
        """The shapes of the layers, if all have the same and they say more than what was derived."""
        trace = self.components.trace
        if trace.origin is not None or any(layer.shapes != trace.layers[0].shapes for layer in trace.layers):
            return []
        return [shapes_table(trace, trace.layers[0], self.components.palette, self.components.width)]

    @cached_property
    def proof(self) -> list[Block]:
        """The proof of the layer whose numbers are farthest from the model's, if any has one."""
        proven = [layer for layer in self.components.trace.layers if layer.proof]
        worst = max(proven, key=lambda layer: layer.proof.max_abs_error if layer.proof else 0, default=None)
        if worst is None:
            return []
        return [wrap_block("", proof_line(worst, self.components.palette).plain, self.components.width)]

    def note(self, facts: Sequence[str]) -> str:
        """Return a line that says what the screen has room for, and what shows the rest."""
        begin = f"{self._longest} tokens: " if self.is_long else ""
        chooses = ["--head", *["--layer"] * self.is_many, "--query"]
        return (
            f"{begin}one screen has room for {' and '.join(facts)}; --all shows everything, "
            f"{', '.join(chooses[:-1])} and {chooses[-1]} choose"
        )

    def lines_of(self, note: str) -> int:
        """Return how many lines of the screen a note takes, as stderr says it."""
        return len(self._wrap(f"attn: {note}").lines) if note else 0

    @cached_property
    def _longest(self) -> int:
        return max(max(len(frame.rows), len(frame.columns)) for frame in self.frames)

    def _wrap(self, text: str) -> Block:
        return wrap_block("", self.components.palette.fit(text), self.components.width, style=None)
