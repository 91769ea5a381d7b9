"""Softmaxes of queries with keys whose weights could not be followed to values: they are counted, in one line."""

from __future__ import annotations

from attncli.recording.call import CallSite
from attncli.text import plural

_MOST_PLACES = 3  # that are named


class Unfollowed:
    """The softmaxes of queries with keys whose weights were not followed to values.

    Args:
        notes: what is said at the end, where one note of theirs is kept up to date.
    """

    def __init__(self, notes: list[str]) -> None:
        self._notes, self._said = notes, ""
        self._at: dict[CallSite, int] = {}
        self._first: dict[str, tuple[int, ...]] = {}  # the shape of the first one of a line

    def count(self, place: CallSite, shape: tuple[int, ...], by: int = 1) -> None:
        """Take in a softmax."""
        self._at[place] = self._at.get(place, 0) + by
        self._first.setdefault(str(place), shape)
        if self._said in self._notes:
            self._notes.remove(self._said)
        if (count := sum(self._at.values())) == 0:
            return
        lines = dict.fromkeys(str(place) for place, own in self._at.items() if own)
        named = [f"{list(self._first[line])} at {line}" for line in lines]
        more = [plural(len(named) - _MOST_PLACES, "more place")] * (len(named) > _MOST_PLACES)
        what, them = (f"{count} softmaxes are", "them") if count > 1 else ("1 softmax is", "it")
        where = ", ".join([*named[:_MOST_PLACES], *more])
        self._said = f"{what} not shown, as attn could not follow {them} from scores to values: {where}"
        self._notes.append(self._said)

    def forget(self, place: CallSite) -> None:
        """Take one back, as its weights met values after all."""
        self.count(place, (), -1)
