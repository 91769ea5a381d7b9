"""A prediction before and after a cut: the numbers, and of heads that were cut alone a map and a ranking."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.segment import Segment

from attncli.analysis.ablation import Ablation, EdgeCount, HeadEffect, HeadPlace
from attncli.render.bars import bar_column, largest_of, signed_bar
from attncli.render.block import (
    COMFORTABLE,
    Block,
    Bounds,
    Cell,
    Column,
    block,
    flowing,
    in_words,
    lines_of,
    ranking,
    shortened,
    stack,
    wrapping,
)
from attncli.render.heatmap import maps_and_list, ramp_line
from attncli.render.matrix import number_text
from attncli.render.palette import BOLD, DIM, Palette, Scale
from attncli.render.sections import architecture_of, joined, numbers_of
from attncli.text import as_ranges, plural, visible

_DIGITS = 2
_MOST = 20  # heads of the ranking, on a screen
_BAR, _WITH_BARS = 10, 72  # cells; of a line that has a map and bars next to each other
_LISTED = 6  # heads that are named where they were cut together
_UNITS = {"logprob": "nats", "difference": "logits", "loss": "nats a token"}
_REPLACED = {"zero": "zero", "mean": "its mean over the positions"}
_DIRECT = "what is cut, through W_o, the final norm (its scale held) and the unembedding"


def ablation_parts(
    ablation: Ablation,
    palette: Palette,
    width: int | None,
    height: int | None = None,
    precision: int | None = None,
    sentence: int | None = None,
) -> list[RenderableType]:
    """Return what a cut does to a prediction; blank lines belong between the parts.

    With the number of a sentence, which is one of several, its text is a part.
    """
    view = _AblationView(ablation, palette, width or COMFORTABLE, _DIGITS if precision is None else precision)
    source = ablation.source
    facts = [*architecture_of(source), plural(source.layers, "layer"), *numbers_of(source)]
    headline = joined(source.title, [*facts, plural(len(ablation.tokens), "token")])
    parts: list[RenderableType] = [headline, view.summary(sentence)]
    if ablation.heads:
        parts += view.each(10**6 if height is None else height - lines_of(parts, view.width), height is not None)
    return parts


def _named(places: Sequence[HeadPlace]) -> str:
    if len(places) <= _LISTED:
        return f"head{'s' * (len(places) > 1)} " + " ".join(f"L{layer}H{head}" for layer, head in places)
    layers = sorted({layer for layer, _ in places})
    return f"{len(places)} heads of layer{'s' * (len(layers) > 1)} {as_ranges(layers)}"


@dataclass(frozen=True)
class _AblationView:
    """An ablation laid out for one output."""

    ablation: Ablation
    palette: Palette
    width: int
    digits: int

    @property
    def _unit(self) -> str:
        return _UNITS[self.ablation.kind]

    def _number(self, value: float, sign: str = "") -> str:
        return number_text(value, self.digits, sign=sign)

    # --- the prediction ---

    def summary(self, sentence: int | None) -> Block:
        """Return what is measured and what was cut, with the outcome before, after, and the change."""
        one = self.ablation
        rows: list[list[Cell]] = [[("outcome", DIM), (self._outcome(), None)], [("cut", DIM), (self._cut(), None)]]
        if sentence is not None:
            text = shortened(visible(one.text), self.width)
            rows.insert(0, [(f"sentence {sentence}", DIM), (text, None)])
        numbers = [("before", one.before, self._meaning(one.before), "")]
        if one.after is not None and one.change is not None:
            numbers += [("after", one.after, self._meaning(one.after), ""), ("change", one.change, "", "+")]
        if one.direct is not None:
            numbers.append(("adds directly", one.direct, _DIRECT, "+"))
        wide = max(len(self._number(value, sign)) for _, value, _, sign in numbers)
        for name, value, meaning, sign in numbers:
            rows.append([(name, DIM), (f"{self._number(value, sign):>{wide}} {self._unit}  {meaning}", None)])
        return wrapping(rows, "<<", self.width)

    def _outcome(self) -> str:
        one = self.ablation
        if one.kind == "loss":
            first, last = one.targets[0], one.targets[-1]
            which = f"token {first}" if first == last else f"tokens {as_ranges(one.targets)}"
            return f"mean loss of {which}, each predicted from those before it"
        assert one.next is not None
        named = visible(one.next.label)
        if one.against is not None:
            return f"logit of {named} − logit of {visible(one.against.label)} as the next token"
        chosen = "" if one.choice.next is not None else ", the model's own first choice"
        return f"log-probability of {named} as the next token{chosen}"

    def _cut(self) -> str:
        one, choice = self.ablation, self.ablation.choice
        alone = ", each alone" if one.heads and len(one.cut) > 1 else ""
        if one.edges is None:
            replaced = _REPLACED.get(choice.with_, "that in the other text")
            return f"{_named(one.cut)}{alone}: output replaced by {replaced}"
        places: dict[EdgeCount, list[HeadPlace]] = {}
        for place, count in zip(one.cut, one.edges, strict=True):
            places.setdefault(count, []).append(place)
        counts = ", ".join(
            f"{count.cut:,} of {count.total:,} edges in {_named(alike)}" for count, alike in places.items()
        )
        return f"{counts}{alone}; {visible(str(choice.expression()))} is left"

    def _meaning(self, value: float) -> str:
        one = self.ablation
        if one.kind == "logprob":
            return f"probability {math.exp(value):#.3g}"
        if one.kind == "loss":
            return f"perplexity {math.exp(min(value, 700)):.4g}"
        assert one.next is not None
        assert one.against is not None
        first, second = (one.next, one.against) if value >= 0 else (one.against, one.next)
        times = f"{math.exp(min(abs(value), 700)):.3g}"
        return f"{visible(first.label)} is {times} times as likely as {visible(second.label)}"

    # --- heads that were cut alone ---

    def each(self, room: int, is_screen: bool) -> Iterator[Block]:
        """Yield a map of the changes next to or above the heads that change most, as many as there is room for."""
        ranked = self.ablation.ranked()
        if self.palette.is_read_aloud:
            yield self._listed(ranked)
            return
        scale = Scale.around_zero(largest_of(head.change for head in ranked))
        title = [Segment(f"change, {self._unit}", BOLD)]
        ramp = ramp_line(scale, self.palette, self.width)
        above = flowing([title, ramp, [Segment("- lower when cut", DIM)]], self.width)
        left, most = room - len(above.lines) - 1, _MOST if is_screen else len(ranked)
        maps = {"": {(head.layer, head.head): head.change for head in ranked}}
        bounds = Bounds(left, self.width)
        both = maps_and_list(
            maps, scale, self.palette, bounds, self.digits, lambda count: self._listed(ranked[: min(count, most)])
        )
        yield stack([above, both])
        note = block([Segment(line, DIM)] for line in in_words(f"adds directly: {_DIRECT}", self.width))
        has_direct = any(head.direct is not None for head in ranked)
        if has_direct and len(both.lines) + len(note.lines) + 1 <= left:
            yield note

    def _listed(self, heads: list[HeadEffect]) -> Block:
        largest = largest_of(head.change for head in self.ablation.heads)
        after = Column("after", [self._number(head.after) for head in heads])
        if self.ablation.kind == "logprob":
            after = Column("p after", [f"{math.exp(head.after):#.3g}" for head in heads])
        columns = [
            Column("head", [f"L{head.layer}H{head.head}" for head in heads], BOLD, "<"),
            after,
            Column("change", [self._number(head.change, "+") for head in heads]),
        ]
        if self.width >= _WITH_BARS and not self.palette.is_read_aloud:
            columns.append(bar_column(signed_bar(head.change, largest, _BAR, self.palette) for head in heads))
        if any(head.direct is not None for head in heads):
            direct = ["" if head.direct is None else self._number(head.direct, "+") for head in heads]
            columns.append(Column("adds directly", direct))
        return ranking(columns, len(self.ablation.heads) - len(heads), self.width, self.palette)
