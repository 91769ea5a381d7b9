"""Softmaxes of queries with keys whose weights could not be followed to values: they are counted, in one line."""

from __future__ import annotations

from collections.abc import Sequence

from attncli.recording.call import CallSite
from attncli.text import plural

_MOST_PLACES = 3  # that are named

Shape = tuple[int, ...]


class Unfollowed:
    """The softmaxes of queries with keys whose weights were not followed to values.

    Args:
        notes: what is said at the end, where one note of theirs is kept up to date.
    """

    def __init__(self, notes: list[str]) -> None:
        self._notes, self._said = notes, ""
        self._at: dict[CallSite, tuple[int, Shape]] = {}

    def count(self, place: CallSite, shape: Shape) -> None:
        """Take in a softmax."""
        count, first = self._at.get(place, (0, shape))
        self._at[place] = count + 1, first
        self._say()

    def forget(self, place: CallSite) -> None:
        """Take one back, as its weights met values after all."""
        count, first = self._at.pop(place)
        if count > 1:
            self._at[place] = count - 1, first
        self._say()

    def _say(self) -> None:
        before, self._said = self._said, self._text()
        if before in self._notes:
            self._notes.remove(before)
        if self._said:
            self._notes.append(self._said)

    def _text(self) -> str:
        """Return how many there are, and where."""
        lines: dict[str, list[CallSite]] = {}
        for place in self._at:
            lines.setdefault(str(place), []).append(place)
        if not lines:
            return ""
        named = [self._named(places) for places in lines.values()]
        more = len(named) - _MOST_PLACES
        named = [*named[:_MOST_PLACES], *([plural(more, "more place")] if more > 0 else [])]
        count = sum(count for count, _ in self._at.values())
        what, them = (f"{count} softmaxes are", "them") if count > 1 else ("1 softmax is", "it")
        return f"{what} not shown, as attn could not follow {them} from scores to values: {', '.join(named)}"

    def _named(self, places: Sequence[CallSite]) -> str:
        """Return the size of the first softmax of a line, the line, and its modules."""
        first, *more = places
        modules = f" ({first.module}{f' and {len(more)} more' if more else ''})" if first.module else ""
        return f"{list(self._at[first][1])} at {first}{modules}"
