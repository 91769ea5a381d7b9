"""The tokens of the text as they form, with the query and the key that are looked at marked among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from attncli.render.explore.pane import KEY, QUERY, PaneContent
from attncli.render.fit import Bounds, crop
from attncli.render.palette import BOLD, DIM, Palette
from attncli.trace.tokens import Token, Tokens

_LONGEST = 20  # cells of a token
_BOTH = "◆"  # of a token that is the query and the key


class TokenHit(NamedTuple):
    """A token of a strip.

    Attributes:
        side: whether it is one of the queries, of the keys, or of one sequence that both are.
        position: in its sequence.
    """

    side: str
    position: int


class TokenCell(NamedTuple):
    """What stands between two blanks of a strip.

    Attributes:
        text: it.
        style: of it.
        position: of the token; None is what says how many are left out.
    """

    text: str
    style: Style | None
    position: int | None

    @property
    def width(self) -> int:
        """How many cells it takes."""
        return cell_len(self.text)


def token_strip(
    tokens: tuple[Tokens, Tokens],
    query: int | None,
    key: int | None,
    around: tuple[int | None, int | None],
    palette: Palette,
    room: Bounds,
) -> PaneContent[TokenHit]:
    """Return the tokens, or the part of them around some, with how many are left out.

    Two sequences stand below each other, or beside each other where there is one line.

    Args:
        tokens: the queries and the keys.
        query: the position of the query; None marks none.
        key: likewise.
        around: the positions that are shown where not all are; None are those of the query and the key.
        palette: how words look.
        room: at least 1 line of 10 cells.
    """
    queries, keys = tokens
    if queries == keys:
        parts = [(TokenStrip(queries, {QUERY: query, KEY: key}, around[0], palette), "tokens", 0, 0, room)]
    elif room.lines > 1:
        upper = room.lines // 2
        parts = [
            (TokenStrip(queries, {QUERY: query}, around[0], palette), "query", 0, 0, Bounds(upper, room.width)),
            (TokenStrip(keys, {KEY: key}, around[1], palette), "key", upper, 0, Bounds(room.lines - upper, room.width)),
        ]
    else:
        half = (room.width - 1) // 2
        parts = [
            (TokenStrip(queries, {QUERY: query}, around[0], palette), "query", 0, 0, Bounds(1, half)),
            (TokenStrip(keys, {KEY: key}, around[1], palette), "key", 0, half + 1, Bounds(1, half)),
        ]
    lines: list[list[Segment]] = []
    spots: list[tuple[int, range, TokenHit]] = []
    for strip, side, top, left, own in parts:
        drawn = strip.lines(own)
        for number, line in enumerate(drawn):
            while len(lines) <= top + number:
                lines.append([])
            column = sum(segment.cell_length for segment in lines[top + number])
            lines[top + number].append(Segment(" " * (left - column)))
            column = left
            for piece in line:
                lines[top + number].append(Segment(piece.text, piece.style))
                if piece.position is not None:
                    spots.append((top + number, range(column, column + piece.width), TokenHit(side, piece.position)))
                column += piece.width

    def at(line: int, column: int) -> TokenHit | None:
        return next((spot for number, columns, spot in spots if number == line and column in columns), None)

    return PaneContent(crop(lines, room), at)


class TokenStrip(NamedTuple):
    """The tokens of one sequence, to be laid out in lines."""

    tokens: Tokens
    marks: dict[str, int | None]
    around: int | None
    palette: Palette

    def lines(self, room: Bounds) -> list[list[TokenCell]]:
        """Return all tokens where they fit, or else those around one or around the marked ones."""
        if len(self.tokens) <= room.lines * room.width:
            found = self._wrapped(range(len(self.tokens)), room)
            if found is not None:
                return found
        shown: list[int] = []
        left = room.lines * room.width
        for index in self._nearest():
            left -= cell_len(self._label(self.tokens[index], room)) + 1
            if left < 0 and shown:
                break
            shown.append(index)
        while len(shown) > 1:
            found = self._wrapped(sorted(shown), room)
            if found is not None:
                return found
            shown.pop()
        return self._wrapped(shown, Bounds(room.lines + 3, room.width)) or []

    def _nearest(self) -> Iterator[int]:
        """Yield the positions that are to be shown, then those beside them, ever farther away."""
        count = len(self.tokens)
        wanted = self.marks.values() if self.around is None else [self.around]
        centres = list(dict.fromkeys(index for index in wanted if index is not None)) or [count - 1]
        seen = set()
        for distance in range(count):
            for centre in centres:
                for index in dict.fromkeys((centre + distance, centre - distance)):
                    if 0 <= index < count and index not in seen:
                        seen.add(index)
                        yield index

    def _wrapped(self, shown: Sequence[int], room: Bounds) -> list[list[TokenCell]] | None:
        """Return tokens in lines, with counts in place of the others; None where they do not fit."""
        lines: list[list[TokenCell]] = [[]]
        used = 0
        for piece in self._pieces(shown, room):
            if used and used + piece.width > room.width:
                lines.append([])
                used = 0
                if len(lines) > room.lines:
                    return None
            lines[-1].append(piece)
            used += piece.width
        return lines

    def _pieces(self, shown: Iterable[int], room: Bounds) -> Iterator[TokenCell]:
        before = -1
        for index in shown:
            if index > before + 1:
                yield self._left_out(index - before - 1)
            yield self._piece(index, room)
            before = index
        if len(self.tokens) > before + 1:
            yield self._left_out(len(self.tokens) - before - 1)

    def _left_out(self, count: int) -> TokenCell:
        return TokenCell(self.palette.fit(f" …{count:,}…"), DIM, None)

    def _piece(self, index: int, room: Bounds) -> TokenCell:
        token = self.tokens[index]
        marks = [mark for mark, at in self.marks.items() if at == index]
        mark = _BOTH if len(marks) > 1 else "".join(marks)
        previous = self.tokens[index - 1] if index else token
        opens = index > 0 and token.segment == 1 and previous.segment == 0
        gap = mark or ("" if index and _continues(previous, token) else " ")
        style = BOLD if mark else DIM if token.special else None
        return TokenCell(self.palette.fit(" │" * opens + gap) + self._label(token, room), style, index)

    def _label(self, token: Token, room: Bounds) -> str:
        return self.palette.shortened(token.label, max(min(_LONGEST, room.width - 4), 1))


def _continues(previous: Token, token: Token) -> bool:
    """Return whether a token is a further piece of the word of the one before it."""
    if token.special or previous.special or token.segment != previous.segment:
        return False
    if token.text.startswith("##"):
        return True
    return token.word is not None and token.word == previous.word
