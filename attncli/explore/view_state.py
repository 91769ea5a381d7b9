"""State of the explorer's view: the text, the head, the cell, and how they are drawn. Each key makes another one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeVar, get_args

from attncli.analysis import Metric, names_for
from attncli.engines.interactive import Query
from attncli.render.palette import DEFAULT_RAMP
from attncli.trace.tokens import Token, Tokens
from attncli.trace.trace import Texts, texts_of
from attncli.trace.view import Ramp

Numbers = Literal["weights", "norms", "rollout"]
_Value = TypeVar("_Value")


class Limits(NamedTuple):
    """Layers, heads and tokens that can be shown; an empty field is not known yet, and bounds nothing.

    Attributes:
        layers: with attention.
        kinds: of attention that ran in the layer shown.
        heads: of that layer.
        queries: its rows.
        keys: its columns.
    """

    layers: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()
    heads: tuple[int, ...] = ()
    queries: Tokens = Tokens()
    keys: Tokens = Tokens()


@dataclass(frozen=True)
class ViewState:
    """Everything that the screen depends on, besides the model and the terminal's size.

    Attributes:
        question: the input of the model.
        layer: the layer shown; -1 is the last one.
        kind: of its attention; None is the first that ran.
        head: its head; a rollout has one, and keeps this number.
        query: the row of the cursor, a position.
        key: its column.
        numbers: shown in the maps.
        metric: shown in the map of layers × heads.
        ramp: of colours; None is the default.
    """

    question: Query
    layer: int = 0
    kind: str | None = None
    head: int = 0
    query: int = 0
    key: int = 0
    numbers: Numbers = "weights"
    metric: Metric = "entropy"
    ramp: Ramp | None = None

    @property
    def needs(self) -> tuple[object, ...]:
        """Key of the computation; views with equal keys share one result."""
        return self.question, self.layer, self.numbers, self.kind if self.numbers == "rollout" else None

    # --- input of the model

    def asking(self, text: str) -> ViewState:
        """Return the view of another text, with the cursor in the same place."""
        return replace(self, question=self.question._replace(text=text))

    def with_text(self, name: str, text: str) -> ViewState:
        """Return the view of the same text with another `pair`, `target` or `mask`; an empty one removes it."""
        return replace(self, question=Query(**self.question._asdict() | {name: text or None}))

    def counting(self, numbers: Numbers) -> ViewState:
        """Return the view of these numbers; where they are shown already, of the weights again."""
        return replace(self, numbers="weights" if self.numbers == numbers else numbers)

    # --- position

    def within(self, room: Limits) -> ViewState:
        """Return the nearest view that the limits allow."""
        return replace(
            self,
            layer=room.layers[-1] if self.layer < 0 and room.layers else _stepped(self.layer, room.layers),
            kind=self.kind if not room.kinds or self.kind in room.kinds else None,
            head=_stepped(self.head, room.heads),
            query=_inside(self.query, room.queries),
            key=_inside(self.key, room.keys),
        )

    def on(self, room: Limits, **places: int) -> ViewState:
        """Return the view of another layer, head, query or key, or of the nearest one."""
        return replace(self, **{name: max(place, 0) for name, place in places.items()}).within(room)  # type: ignore[arg-type]

    def moved(self, room: Limits, rows: int = 0, columns: int = 0) -> ViewState:
        """Return the view with the cursor moved by rows and columns."""
        return self.on(room, query=self.query + rows, key=self.key + columns)

    def next_layer(self, room: Limits, by: int = 1) -> ViewState:
        """Return the view of the layer `by` places after this one, or of the first or last."""
        return replace(self, layer=_stepped(self.layer, room.layers, by)).within(room)

    def next_head(self, room: Limits, by: int = 1) -> ViewState:
        """Return the view of the head `by` places after this one, or of the first or last."""
        return replace(self, head=_stepped(self.head, room.heads, by)).within(room)

    def next_kind(self, room: Limits) -> ViewState:
        """Return the view of the next kind of attention; the first follows the last."""
        return replace(self, kind=_after(self.kind or room.kinds[0], room.kinds)) if room.kinds else self

    def carried(self, before: Limits, after: Limits) -> ViewState:
        """Return the view with the cursor on the same tokens, after the text has changed around them.

        The last query stays the last one, so that each new token shows its attention.
        """
        query = _carried(self.query, before.queries, after.queries)
        if before.queries and after.queries and self.query == last_word(before.queries):
            query = last_word(after.queries)
        key = _carried(self.key, before.keys, after.keys)
        return replace(self, query=query, key=key).within(after)

    def finding(self, room: Limits, wanted: str) -> ViewState | None:
        """Return the view with the cursor on the next query, or else key, that has these letters; None without one.

        Lower case finds upper case too. A number that no token has is a position.
        """
        texts = texts_of(self.question.text, self.question.pair, self.question.target)
        rows, columns = (_named(wanted, *side) for side in zip((room.queries, room.keys), texts, strict=True))
        if rows:
            return self.on(room, query=next((row for row in rows if row > self.query), rows[0]))
        if columns:
            return self.on(room, key=next((column for column in columns if column > self.key), columns[0]))
        return None

    # --- drawing

    def next_metric(self, by: int = 1) -> ViewState:
        """Return the view with another metric in the map of layers × heads."""
        return replace(self, metric=_after(self.metric, names_for(False), by))

    def next_ramp(self) -> ViewState:
        """Return the view with another ramp of colours."""
        return replace(self, ramp=_after(self.ramp or DEFAULT_RAMP, get_args(Ramp)))


def last_word(tokens: Tokens) -> int:
    """Return the position of the last token that is not special, or of the last one."""
    return max((token.index for token in tokens if not token.special), default=len(tokens) - 1)


def _stepped(value: int, among: Sequence[int], by: int = 0) -> int:
    """Return the value `by` places after the nearest of some; the value itself where there are none."""
    if not among:
        return value
    nearest = min(range(len(among)), key=lambda place: abs(among[place] - value))
    return among[min(max(nearest + by, 0), len(among) - 1)]


def _inside(place: int, tokens: Tokens) -> int:
    return max(min(place, len(tokens) - 1) if tokens else place, 0)


def _after(value: _Value, among: Sequence[_Value], by: int = 1) -> _Value:
    return among[(among.index(value) + by) % len(among)]


def _carried(place: int, before: Tokens, after: Tokens) -> int:
    """Return the new position of a token: those before an edit stay, those behind it move along."""
    if not before or not after:
        return place
    old, new = ([(token.segment, token.text) for token in tokens] for tokens in (before, after))
    ahead = _shared(old, new)
    behind = min(_shared(old[::-1], new[::-1]), min(len(old), len(new)) - ahead)
    if place < ahead:
        return place
    if place >= len(old) - behind:
        return place + len(new) - len(old)
    return min(place, max(len(new) - behind - 1, ahead))


def _shared(first: Sequence[object], second: Sequence[object]) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(first), len(second)))


def _named(wanted: str, tokens: Tokens, texts: Texts) -> list[int]:
    """Return the positions of tokens that have some letters, or in which these begin in the text."""
    letters = re.compile(re.escape(wanted), re.IGNORECASE if wanted == wanted.lower() else 0)
    begins = [[match.start() for match in letters.finditer(text or "")] for text in texts]

    def is_meant(token: Token) -> bool:
        start, end = token.start, token.end
        is_begun = start is not None and end is not None and any(start <= each < end for each in begins[token.segment])
        return is_begun or letters.search(token.label) is not None

    found = [token.index for token in tokens if is_meant(token)] if wanted else []
    is_position = wanted.isdecimal() and len(wanted) <= len(str(len(tokens))) and int(wanted) < len(tokens)
    return found or ([int(wanted)] if is_position else [])
