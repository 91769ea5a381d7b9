"""Labels of losses and the ids that a forward reads: whether each output is asked for the next token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.masks.findings import Finding

if TYPE_CHECKING:
    from jaxtyping import Int

_WRONG = {0: "the token that it reads", 2: "the token after the next one"}
_LEAST_TOKENS = 3  # different ones, below which anything is like anything


class Loss(NamedTuple):
    """Labels of a loss."""

    labels: Int[np.ndarray, " N"]  # below 0 nothing is asked
    place: str  # the line of the program


def label_findings(losses: Sequence[Loss], ids: Iterable[Int[np.ndarray, "B T"]], has_heads: bool) -> Iterator[Finding]:
    """Yield that the losses of a step ask each output for the token that it reads, or for the one after the next.

    Where one of them asks for the next token, others are of heads that look further, as in multi-token prediction. The
    `ids` are of the forwards before them, the last one's first. With several outputs for a position, some may read the
    next token already.
    """
    by_sequence = [[_shift(loss.labels, sequence) for loss in losses] for sequence in ids]
    if not by_sequence or any(1 in shifts for shifts in by_sequence):
        return
    for loss, shift in zip(losses, by_sequence[0], strict=True):
        if shift in _WRONG and {*by_sequence[0]} <= {shift, None} and not (shift and has_heads):
            message = f"the loss asks the output at each position for {_WRONG[shift]}"
            advice = "shift once: logits[:, :-1] against labels[:, 1:]"
            yield Finding("label", "error", message, advice=advice, made_at=(loss.place,))
            return


def _shift(labels: Int[np.ndarray, " N"], ids: Int[np.ndarray, "B T"]) -> int | None:
    """Return how many positions behind the ids that are read the labels are; None where they are other ones."""
    batch, length = ids.shape
    rows = labels.reshape(batch, -1) if labels.size % batch == 0 else labels[None]
    for shift in range(min(length - 1, 8)):
        read = ids[:, shift:][:, : rows.shape[1]]
        wanted = rows[:, : read.shape[1]]
        if wanted.shape == read.shape and wanted.shape[1] >= length - max(shift, 2):
            counts = (wanted >= 0) & (read >= 0)
            if (wanted == read)[counts].all() and len({*wanted[counts].tolist()}) >= _LEAST_TOKENS:
                return shift
    return None
