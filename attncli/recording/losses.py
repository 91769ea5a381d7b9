"""Losses that ask at each position for a token, and whether it is the one that stands at the next position.

The numbers of words that an embedding was given are compared with the targets. Which attention the scores were computed
from is in what autograd records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch.utils.weak import TensorWeakRef

from attncli.files import to_numpy
from attncli.recording.lineage import History, Lineage

if TYPE_CHECKING:
    from jaxtyping import Int

LEAST_TARGETS = 8  # that are the next token; of fewer it may be an accident
_IGNORED = -1


class Embedded(NamedTuple):
    """Numbers of words that were given to an embedding; the tensor is not kept alive.

    Attributes:
        ids: the tensor, `[B, T]`, `[T, B]` or `[T]`.
        version: how often it had been changed in place.
        operation: of the vectors.
    """

    ids: TensorWeakRef
    version: int
    operation: int


@dataclass(frozen=True)
class Loss:
    """A loss of scores of tokens, while the program waits.

    Attributes:
        scores: what it is computed from, with a history.
        target: the token that each position is asked for.
        ignored: which is none.
        weight: of each token; None is 1.
        embedded: what was given to embeddings before.
        calls: the attention before.
    """

    scores: torch.Tensor
    target: torch.Tensor
    ignored: int
    weight: torch.Tensor | None
    embedded: Sequence[Embedded]
    calls: Sequence[Lineage]

    def next_tokens(self) -> Iterator[tuple[Int[np.ndarray, "B N"], History]]:
        """Yield the sequences of this step of which it asks for the next token at each position.

        The token that each position is asked for, −1 where none is, and what its scores were computed from.
        """
        for each in self.embedded:
            ids = each.ids()
            if ids is None or ids._version != each.version:
                continue
            targets = self._next(ids[None] if ids.dim() == 1 else ids)
            if targets is not None:
                batch, length = targets.shape
                yield targets, History(self.scores, each.operation, batch, length + 1, self.calls)

    def _next(self, ids: torch.Tensor) -> Int[np.ndarray, "B N"] | None:
        """Return the targets that are the next tokens of their rows; None where they are others, or too few."""
        counts = self.target != self.ignored
        if self.weight is not None:
            counts &= self.weight[self.target.where(counts, 0)] != 0
        targets = self.target.where(counts, _IGNORED)
        for rows in (ids, ids.T):
            for own in _as_rows(targets, *rows.shape):
                if bool(((own == rows[:, 1:]) | (own == _IGNORED)).all()):
                    found = to_numpy(own)
                    return found if _is_text(found, to_numpy(rows)) else None
        return None


def _as_rows(targets: torch.Tensor, batch: int, length: int) -> Iterator[torch.Tensor]:
    """Yield targets as `[B, T − 1]`, in every way in which so many can be meant."""
    for each in (length, length - 1):
        if targets.numel() == batch * each and length > 1:
            yield targets.reshape(batch, each)[:, : length - 1]
            yield targets.reshape(each, batch).T[:, : length - 1]


def _is_text(targets: Int[np.ndarray, "B N"], ids: Int[np.ndarray, "B T"]) -> bool:
    """Return whether targets are enough and various enough to be the next tokens by no accident: positions count."""
    asks = targets != _IGNORED
    counts_on = ids[:, 1:] == ids[:, :-1] + 1
    return bool(asks.sum() >= LEAST_TARGETS and len(np.unique(targets[asks])) > 2 and not counts_on[asks].all())
