"""What a person looks at: the text, the head, the cell and how they are drawn. Every key makes another one of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, get_args

from attncli.analysis.metric_names import Metric, names_for
from attncli.engines.interactive import Query
from attncli.errors import InputMismatchError
from attncli.render.palette import DEFAULT_RAMP
from attncli.trace.tokens import Token, Tokens
from attncli.trace.trace import Texts, texts_of
from attncli.trace.view import Ramp

if TYPE_CHECKING:
    from attncli.trace.layout import SideLayout

Numbers = Literal["weights", "norms", "rollout"]
FIRST_METRIC: Metric = "entropy"  # of the map, until another one is chosen
Shown = tuple[range, range]  # the first row and the first column of each cell that is drawn
_Value = TypeVar("_Value")


class Limits(NamedTuple):
    """How far one can look; what is empty is not known yet, and bounds nothing.

    Attributes:
        layers: those that can be looked at.
        kinds: of attention, those that ran in the layer that is looked at.
        heads: those of it.
        queries: what its rows are.
        keys: what its columns are.
        layout: which of the columns are cells of pictures; None where none are.
    """

    layers: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()
    heads: tuple[int, ...] = ()
    queries: Tokens = Tokens()
    keys: Tokens = Tokens()
    layout: SideLayout | None = None


class Viewport(NamedTuple):
    """The part of a long text that is shown.

    Attributes:
        query: the first row.
        key: the first column.
        zoom: 0 is the whole text, pooled to fit; each step more halves what a cell stands for, down to one token.
    """

    query: int = 0
    key: int = 0
    zoom: int = 0


WHOLE = Viewport()


@dataclass(frozen=True)
class ViewState:
    """Everything that the picture depends on, besides the model and the size of the terminal.

    Attributes:
        question: what the model is asked.
        layer: the layer that is shown; -1 is the last one, until it is known which there are.
        kind: of its attention; None is the first that ran.
        head: its head; a rollout has one, and remembers this.
        query: the row of the cell under the cursor, a position.
        key: its column.
        numbers: what the maps show.
        metric: what the map of layers × heads shows; None is how far each head is from that of the held question.
        ramp: how far along the colours a weight stands; None is the default.
        port: the part of a long text that is shown.
        held: the question whose attention this one is compared with.
    """

    question: Query
    layer: int = 0
    kind: str | None = None
    head: int = 0
    query: int = 0
    key: int = 0
    numbers: Numbers = "weights"
    metric: Metric | None = FIRST_METRIC
    ramp: Ramp | None = None
    port: Viewport = WHOLE
    held: Query | None = None

    @property
    def needs(self) -> tuple[object, ...]:
        """What has to be computed; one answer serves all looks that need the same."""
        return self.question, self.layer, self.numbers, self.kind if self.numbers == "rollout" else None, self.held

    # --- what the model is asked

    def asking(self, text: str) -> ViewState:
        """Return the look at another text, from the same place."""
        return replace(self, question=self.question._replace(text=text))

    def masked(self, mask: str) -> ViewState:
        """Return the look through another mask; an empty one is the model's own."""
        return replace(self, question=self.question._replace(mask=mask.strip() or None))

    def with_text(self, name: str, text: str) -> ViewState:
        """Return the look at the same text with another `pair` or `target` beside it; an empty one is none."""
        return replace(self, question=Query(**self.question._asdict() | {name: text or None}))

    def holding(self) -> ViewState:
        """Return the look with this question held, so that others are compared with it; with none if one is held."""
        if self.held is None:
            return replace(self, held=self.question, metric=None)
        return replace(self, held=None, metric=self.metric or FIRST_METRIC)

    def counting(self, numbers: Numbers) -> ViewState:
        """Return the look at these numbers; if they are shown already, at the weights again."""
        return replace(self, numbers="weights" if self.numbers == numbers else numbers)

    # --- where one looks

    def within(self, room: Limits) -> ViewState:
        """Return the look at what there is: each place the nearest one to where it was."""
        return replace(
            self,
            layer=room.layers[-1] if self.layer < 0 and room.layers else _stepped(self.layer, room.layers),
            kind=self.kind if not room.kinds or self.kind in room.kinds else None,
            head=_stepped(self.head, room.heads),
            query=_inside(self.query, room.queries),
            key=_inside(self.key, room.keys),
        )

    def on(self, room: Limits, **places: int) -> ViewState:
        """Return the look at another layer, head, query or key, or as near to it as there is one."""
        return replace(self, **{name: max(place, 0) for name, place in places.items()}).within(room)  # type: ignore[arg-type]

    def moved(self, room: Limits, rows: int = 0, columns: int = 0) -> ViewState:
        """Return the look with the cursor so many rows further down and columns further right.

        Where the query is a cell of a picture, it goes to the cell that stands there, and above and below it out of it.
        """
        if room.layout is not None:
            from attncli.render.picture import neighbour

            found = neighbour(room.layout, self.query, rows, columns)
            if found is not None:
                is_there = found in range(len(room.queries)) or abs(rows) > 1
                return self.on(room, query=found) if is_there else self
        return self.on(room, query=self.query + rows, key=self.key + columns)

    def next_layer(self, room: Limits, by: int = 1) -> ViewState:
        """Return the look at the layer so many places after this one; before the first and after the last is none."""
        return replace(self, layer=_stepped(self.layer, room.layers, by)).within(room)

    def next_head(self, room: Limits, by: int = 1) -> ViewState:
        """Return the look at the head so many places after this one, as with layers."""
        return replace(self, head=_stepped(self.head, room.heads, by)).within(room)

    def next_kind(self, room: Limits) -> ViewState:
        """Return the look at the next kind of attention; the first one comes after the last."""
        return replace(self, kind=_after(self.kind or room.kinds[0], room.kinds)) if room.kinds else self

    def carried(self, before: Limits, after: Limits) -> ViewState:
        """Return the look with the cursor on the tokens that it stood on, after the text has changed around them.

        The last query stays the last one: who types on sees what each new token attends to.
        """
        query = _carried(self.query, before.queries, after.queries)
        if before.queries and after.queries and self.query == last_word(before.queries):
            query = last_word(after.queries)
        key = _carried(self.key, before.keys, after.keys)
        return replace(self, query=query, key=key).within(after)

    def finding(self, room: Limits, wanted: str) -> ViewState | None:
        """Return the look with the cursor on the next token with these letters, or where they begin in the text.

        They are looked for below the cursor and then from the first row on; if no row has them, among the columns.
        Small letters find large ones too. A number that stands nowhere is a position. None is that nothing was found.
        `@r1c3` and `@120,80` are cells of a picture.
        """
        texts = texts_of(self.question.text, self.question.pair, self.question.target)
        if wanted.startswith("@") and room.layout is not None:
            with suppress(InputMismatchError):
                return next((self.on(room, query=place) for place in room.layout.positions_of(wanted) or ()), None)
        rows, columns = (_named(wanted, *side) for side in zip((room.queries, room.keys), texts, strict=True))
        if rows:
            return self.on(room, query=next((row for row in rows if row > self.query), rows[0]))
        if columns:
            return self.on(room, key=next((column for column in columns if column > self.key), columns[0]))
        return None

    # --- how it is drawn

    def next_metric(self, by: int = 1, has_pictures: bool = False) -> ViewState:
        """Return the look with another metric on the map; where a question is held, what changed is one of them."""
        names = names_for(has_pictures)
        return replace(self, metric=_after(self.metric, names if self.held is None else (None, *names), by))

    def next_ramp(self) -> ViewState:
        """Return the look with another ramp of colours."""
        return replace(self, ramp=_after(self.ramp or DEFAULT_RAMP, get_args(Ramp)))

    def zoomed(self, shown: Shown, most: int, by: int) -> ViewState:
        """Return the look with cells that stand for half as much, so many times; the cursor stays where it is seen.

        They are what is shown now, and can be halved `most` times; below 0 they stand for twice as much.
        """
        now = min(self.port.zoom, most)
        zoom = min(max(now + by, 0), most)
        share = 2.0 ** (now - zoom)
        query = self.query - int((self.query - shown[0].start) * share)
        key = self.key - int((self.key - shown[1].start) * share)
        return replace(self, port=Viewport(max(query, 0), max(key, 0), zoom))

    def scrolled(self, room: Limits, shown: Shown, rows: int = 0, columns: int = 0) -> ViewState:
        """Return the look through a port so many cells further on, and the cursor in it."""
        of_rows = _further(shown[0], rows, len(room.queries))
        of_columns = _further(shown[1], columns, len(room.keys))
        looked = replace(self, port=Viewport(of_rows.start, of_columns.start, self.port.zoom))
        query, key = (
            max(min(place, part.stop - 1), part.start)
            for place, part in ((self.query, of_rows), (self.key, of_columns))
        )
        return looked.on(room, query=query, key=key)


def last_word(tokens: Tokens) -> int:
    """Return the position of the last token that is not special, or of the last one."""
    return max((token.index for token in tokens if not token.special), default=len(tokens) - 1)


def _stepped(value: int, among: Sequence[int], by: int = 0) -> int:
    """Return the value so many places after the one of these that is nearest; the value itself if there are none."""
    if not among:
        return value
    nearest = min(range(len(among)), key=lambda place: abs(among[place] - value))
    return among[min(max(nearest + by, 0), len(among) - 1)]


def _inside(place: int, tokens: Tokens) -> int:
    return max(min(place, len(tokens) - 1) if tokens else place, 0)


def _after(value: _Value, among: Sequence[_Value], by: int = 1) -> _Value:
    """Return the value so many places after this one, around the end."""
    return among[(among.index(value) + by) % len(among)]


def _further(shown: range, by: int, size: int) -> range:
    """Return what is seen so many cells further on, as far as there are tokens."""
    wide = shown.stop - shown.start
    first = max(min(shown.start + by * shown.step, size - wide), 0)
    return range(first, first + wide, shown.step)


def _carried(place: int, before: Tokens, after: Tokens) -> int:
    """Return where a token stands now: what is in front of an edit stays, and what is behind it goes along."""
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
    """Return how many values are the same from the start on."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(first), len(second)))


def _named(wanted: str, tokens: Tokens, texts: Texts) -> list[int]:
    """Return the positions of the tokens that have some letters, or in whose characters these begin in the text."""
    letters = re.compile(re.escape(wanted), re.IGNORECASE if wanted == wanted.lower() else 0)
    begins = [[match.start() for match in letters.finditer(text or "")] for text in texts]

    def is_meant(token: Token) -> bool:
        start, end = token.start, token.end
        is_begun = start is not None and end is not None and any(start <= each < end for each in begins[token.segment])
        return is_begun or letters.search(token.label) is not None

    found = [token.index for token in tokens if is_meant(token)] if wanted else []
    is_position = wanted.isdecimal() and len(wanted) <= len(str(len(tokens))) and int(wanted) < len(tokens)
    return found or ([int(wanted)] if is_position else [])
