"""The tokens of the text as they form, the keys on the colours of their weights, the query and the key marked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from attncli.render.explore.layer_view import LayerViewCache
from attncli.render.explore.pane import KEY, QUERY, PaneContent
from attncli.render.fit import Bounds, crop
from attncli.render.palette import BOLD, DIM, Palette
from attncli.render.sentence import continues
from attncli.trace.tokens import Token, Tokens
from attncli.trace.top_keys import drawn_cells
from attncli.trace.view import Ramp

_LONGEST = 20  # cells of a token
BOTH = "◆"  # of a token that is the query and the key


class WeightedRow(NamedTuple):
    """The head whose weights the keys are coloured by, and with which colours."""

    sight: LayerViewCache
    head: int
    ramp: Ramp | None

    def cells(self, query: int, palette: Palette) -> list[tuple[str, Style | None]]:
        """Return the glyph and the style of each key: the colour of its weight, or a shade but for the lightest.

        Where `words_of` are, each of them has the weight that it gives to the query.
        """
        (values,), (allowed,) = self.sight.cells(self.head, range(query, query + 1))[1:3]
        if words := self.words_of(query):
            part = self.sight.layer.head(self.head, words)
            values, allowed = np.zeros_like(values), np.zeros_like(allowed)
            values[words], allowed[words] = part.weights[:, query], drawn_cells(part)[:, query]
        found = palette.cells(values[None], allowed[None], self.sight.scale(self.ramp), 1)[0]
        lightest = palette.ramp(1)[0][0]
        return [
            ("", DIM) if not is_seen else ("", style) if style is not None else (glyph.replace(lightest, ""), None)
            for (glyph, style), is_seen in zip(found, allowed.tolist(), strict=True)
        ]

    def words_of(self, query: int) -> list[int]:
        """Return the tokens behind a cell of a picture, where it sees none of them; none for other queries."""
        sight = self.sight
        if sight.layout is None or sight.pair is not None or query not in sight.layout.cells:
            return []
        words = [place for place in range(query + 1, sight.size[1]) if place not in sight.layout.cells]
        sees = sight.cells(self.head, range(query, query + 1)).allowed[0]
        return [] if sees[words].any() else words


class TokenHit(NamedTuple):
    """A token of a strip.

    Attributes:
        side: whether it is one of the queries, of the keys, or of one sequence that both are.
        position: in its sequence.
    """

    side: str
    position: int


class TokenCell(NamedTuple):
    """What stands in a strip without a break: the mark or the blank before a token, and it, or what is left out."""

    gap: str
    text: str
    style: Style | None
    hit: TokenHit | None

    @property
    def width(self) -> int:
        """How many cells it takes."""
        return cell_len(self.gap + self.text)


def token_strip(
    tokens: tuple[Tokens, Tokens],
    query: int | None,
    key: int | None,
    around: tuple[int | None, int | None],
    palette: Palette,
    room: Bounds,
    row: WeightedRow | None = None,
    cells: frozenset[int] = frozenset(),
) -> PaneContent[TokenHit]:
    """Return the tokens, or the part of them around some, with how many are left out.

    The keys stand on the colours of a `row`, or without colours behind its shades. Of two sequences the queries come
    first, and the keys behind a bar. Where not all have room, those `around` some
    positions are shown, or around the query and the key. Of `cells`, which pictures show, these two alone stand there.
    """
    queries, keys = tokens
    if queries == keys:
        sides = [("tokens", queries, [(QUERY, query), (KEY, key)], around[0])]
    else:
        sides = [("query", queries, [(QUERY, query)], around[0]), ("key", keys, [(KEY, key)], around[1])]
    items, centres = list[_Item](), list[int]()
    weights = [] if row is None or query is None else row.cells(query, palette)
    for side, sequence, marks, chosen in sides:
        shown = [chosen] if chosen is not None else [at for _, at in marks if at is not None]
        there = [index for index in range(len(sequence)) if index not in cells or index in (query, key, chosen)]
        centres += [len(items) + there.index(at) for at in shown] or [len(items) + len(there) - 1]
        for index in there:
            token = sequence[index]
            own = [mark for mark, at in marks if at == index]
            mark = BOTH if len(own) > 1 else "".join(own)
            cell = weights[index] if weights and side != "query" else ("", None)
            items.append(_Item(TokenHit(side, index), token, sequence[index - 1] if index else None, mark, *cell))
    lines = _Strip(items, list(dict.fromkeys(centres)), palette, room).lines()

    def at(line: int, column: int) -> TokenHit | None:
        for cell in lines[line] if 0 <= line < len(lines) else ():
            if 0 <= column < cell.width:
                return cell.hit
            column -= cell.width
        return None

    drawn = (
        [part for cell in line for part in (Segment(cell.gap, BOLD), Segment(cell.text, cell.style))] for line in lines
    )
    return PaneContent(crop(drawn, room), at)


class _Item(NamedTuple):
    """A token of a strip: what it is, the one before it in its sequence, its mark, and the glyph of its weight."""

    hit: TokenHit
    token: Token
    previous: Token | None
    mark: str
    glyph: str
    style: Style | None

    @property
    def continues(self) -> bool:
        """Whether it is a further piece of the word of the token before it."""
        return self.previous is not None and continues(self.token, self.previous)


@dataclass(frozen=True)
class _Strip:
    """Tokens to be laid out in lines, all of them or those around some."""

    items: Sequence[_Item]
    centres: Sequence[int]
    palette: Palette
    room: Bounds

    def lines(self) -> list[list[TokenCell]]:
        """Return all tokens where they fit, or else those nearest to the centres."""
        shown: list[int] = []
        left = self.room.lines * self.room.width
        for index in self._nearest():
            left -= self._cell(index).width
            if left < 0 and shown:
                break
            shown.append(index)
        while len(shown) > 1 and len(self._wrapped(sorted(shown))) > self.room.lines:
            shown.pop()
        return self._wrapped(sorted(shown))

    def _nearest(self) -> Iterator[int]:
        """Yield the places of the centres, then those beside them, ever farther away."""
        seen = set()
        for distance in range(len(self.items)):
            for centre in self.centres:
                for index in (centre + distance, centre - distance):
                    if 0 <= index < len(self.items) and index not in seen:
                        seen.add(index)
                        yield index

    def _wrapped(self, shown: Sequence[int]) -> list[list[TokenCell]]:
        """Return tokens in lines, with counts in place of the others."""
        cells, before = list[TokenCell](), -1
        for index in (*shown, len(self.items)):
            if index > before + 1:
                cells.append(TokenCell("", f" …{index - before - 1:,}…", DIM, None))
            cells += [self._cell(index)] if index < len(self.items) else []
            before = index
        lines: list[list[TokenCell]] = [[]]
        for cell in cells:
            if lines[-1] and sum(each.width for each in (*lines[-1], cell)) > self.room.width:
                lines.append([])
            lines[-1].append(cell)
        return lines

    @cached_property
    def _cell(self) -> Callable[[int], TokenCell]:
        """Returns the cell of a place, which is made once while the room for it is looked for."""
        return cache(self._made)

    def _made(self, place: int) -> TokenCell:
        hit, token, previous, mark, glyph, style = self.items[place]
        opens = previous is not None and token.segment == 1 and previous.segment == 0
        bar = " ‖" if place and previous is None else " │" if opens else ""
        gap = mark + glyph.strip() or ("" if self.items[place].continues else " ")
        label = self.palette.shortened(token.label, max(min(_LONGEST, self.room.width - 6), 1))
        style = style or (DIM if token.special else Style.null())
        return TokenCell(bar + gap, label, style + BOLD if mark else style, hit)
