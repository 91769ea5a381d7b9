"""A ragged batch: sentences of any length, concatenated without padding.

One product over the tokens of many sentences costs a third of as many small ones. No sentence is mixed with another,
so that its numbers differ from those alone by rounding only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

    from attncli.encoding.encode import EncodedInput


class TokenIds(NamedTuple):
    """Token ids of a sentence, the input of a model."""

    ids: Sequence[int]  # of its tokens
    segments: Sequence[int] | None = None  # token type ids; None where the tokenizer gives none

    @classmethod
    def of(cls, sentence: EncodedInput) -> TokenIds:
        """Return the ids of an encoded sentence."""
        return cls(sentence.inputs["input_ids"], sentence.inputs.get("token_type_ids"))


class Group(NamedTuple):
    """Sentences of one length, which attend together: their heads are treated as those of one."""

    sentences: Sequence[int]  # their indices in the order of the caller
    tokens: int  # of each
    rows: slice  # their rows of the batch

    def split_heads(self, packed: Float[np.ndarray, "T H D"]) -> Float[np.ndarray, "NH t D"]:
        """Return the rows of the group as heads: those of the first sentence, then those of the next."""
        count, width = packed.shape[1:]
        rows = packed[self.rows].reshape(len(self.sentences), self.tokens, count, width)
        return np.ascontiguousarray(rows.transpose(0, 2, 1, 3)).reshape(-1, self.tokens, width)

    def merge_heads(self, heads: Float[np.ndarray, "NH t D"], packed: Float[np.ndarray, "T H D"]) -> None:
        """Write heads into the rows of the batch; `split_heads` in reverse."""
        count, width = packed.shape[1:]
        split = heads.reshape(len(self.sentences), count, self.tokens, width)
        packed[self.rows] = split.transpose(0, 2, 1, 3).reshape(-1, count, width)


class GroupHeads(NamedTuple):
    """Queries, keys and values of one layer, of a group of sentences."""

    group: Group
    q: Float[np.ndarray, "NH T D"]
    k: Float[np.ndarray, "NHkv T D"]
    v: Float[np.ndarray, "NHkv T D"]


class RaggedBatch:
    """Concatenated sentences, the shortest first; those of one length attend together if they `share`."""

    def __init__(self, sentences: Sequence[TokenIds], share: bool = True) -> None:
        lengths = [len(item.ids) for item in sentences]
        order = sorted(range(len(sentences)), key=lengths.__getitem__)
        self.sentences = [sentences[index] for index in order]
        self.longest = max(lengths)
        self.groups: list[Group] = []
        start = 0
        for tokens, same in groupby(order, lengths.__getitem__):
            for indices in [tuple(same)] if share else [(item,) for item in same]:
                stop = start + len(indices) * tokens
                self.groups.append(Group(indices, tokens, slice(start, stop)))
                start = stop
