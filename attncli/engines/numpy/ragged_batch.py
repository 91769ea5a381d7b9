"""Sentences laid end to end: one product over the tokens of many costs a third of as many small ones.

There is no padding, and nothing of a sentence is mixed with another, so that only rounding tells whether it was alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float


class Inputs(NamedTuple):
    """What a model reads of a sentence.

    Attributes:
        ids: of its tokens.
        segments: which of two texts each belongs to; None where the tokenizer does not say.
    """

    ids: Sequence[int]
    segments: Sequence[int] | None = None


class Group(NamedTuple):
    """Sentences of one length, which attend together: the heads of all of them are like those of one.

    Attributes:
        sentences: their places among those that were given.
        tokens: of each.
        rows: their rows of the pack.
    """

    sentences: Sequence[int]
    tokens: int
    rows: slice

    def rest(self, first: int) -> Group:
        """Return the group of a sentence that is alone, without its first rows."""
        return self._replace(tokens=self.tokens - first, rows=slice(self.rows.start, self.rows.stop - first))

    def apart(self, packed: Float[np.ndarray, "T H D"]) -> Float[np.ndarray, "NH t D"]:
        """Return the rows of the group as heads: those of the first sentence, then those of the next."""
        count, width = packed.shape[1:]
        rows = packed[self.rows].reshape(len(self.sentences), self.tokens, count, width)
        return np.ascontiguousarray(rows.transpose(0, 2, 1, 3)).reshape(-1, self.tokens, width)

    def lay(self, heads: Float[np.ndarray, "NH t D"], packed: Float[np.ndarray, "T H D"]) -> None:
        """Lay heads out as rows of a pack; `apart` in reverse."""
        count, width = packed.shape[1:]
        apart = heads.reshape(len(self.sentences), count, self.tokens, width)
        packed[self.rows] = apart.transpose(0, 2, 1, 3).reshape(-1, count, width)


def grouped(lengths: Sequence[int], together: bool = True) -> list[Group]:
    """Return the groups of a pack, given the number of tokens of each sentence: the shortest are laid first.

    Args:
        lengths: of the sentences.
        together: whether sentences of one length share a group.
    """
    groups: list[Group] = []
    start = 0
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for tokens, same in groupby(order, lengths.__getitem__):
        for sentences in [tuple(same)] if together else [(each,) for each in same]:
            stop = start + len(sentences) * tokens
            groups.append(Group(sentences, tokens, slice(start, stop)))
            start = stop
    return groups
