"""What the inputs of a forward say: which vectors are those of its tokens, and which of them are padding."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Int

    from attncli.recording.call import AttentionCall
    from attncli.recording.input_hint import InputHint
    from attncli.recording.rerun import Forward, OutputName, SequenceLayout

_NOT_WORDS = re.compile("pos|wpe|type|segment")


class CollectedHints:
    """What the inputs of modules say of their positions, in the program's own forward; see `recording.input_hint`."""

    def __init__(self) -> None:
        self.all: list[InputHint] = []
        self._depth = 0

    def of(self, kind: str, batch: int, length: int) -> Int[np.ndarray, "B T"] | None:
        """Return what was said first of a batch of this shape; None where nothing was."""
        fits = [one.values for one in self.all if one.kind == kind and one.values.shape[1] == length]
        return next((np.broadcast_to(one, (batch, length)) for one in fits if len(one) in (1, batch)), None)

    def add(self, hint: InputHint) -> None:
        """See `Hints` of `recording.input_hint`."""
        self.all.append(hint)

    def begin_module(self) -> tuple[int, int]:
        """See `Hints` of `recording.input_hint`; those of a forward begin with its outermost module."""
        if self._depth == 0:
            self.all.clear()
        self._depth += 1
        return self._depth - 1, 0

    def end_module(self, begun: tuple[int, int]) -> int:
        """See `Hints` of `recording.input_hint`; all that is said of the forward is collected."""
        self._depth, _ = begun
        return 0

    def encoded_tokens(self) -> Bool[np.ndarray, "B T"] | None:
        """See `Hints` of `recording.input_hint`."""
        return None

    def add_to_last_call(self, hint: InputHint) -> None:
        """See `Hints` of `recording.input_hint`."""

    def add_finding(self, *finding: Any) -> None:
        """See `Hints` of `recording.input_hint`."""


class Sequences(NamedTuple):
    """The sequences of a forward: the one whose outputs the claim is about, and others, as of an encoder.

    Attributes:
        names: the embedding whose vectors are those of each; None is an argument of the model.
        layouts: how each lies in tensors.
    """

    names: tuple[OutputName | None, ...]
    layouts: tuple[SequenceLayout, ...]


def sequences_of(forward: Forward, calls: Sequence[AttentionCall]) -> Sequences:
    """Return the sequences of a forward: of ids that it embeds, or else of the vectors that it is called with.

    Raises:
        InputError: there are none.
    """
    from attncli.recording.rerun import SequenceLayout

    shapes = [(call.shape[0], call.shape[2]) for call in calls]

    def layout(shape: tuple[int, ...]) -> SequenceLayout:
        batch, length = (1, shape[0]) if len(shape) == 1 else shape[:2]
        is_time_first = (length, batch) in shapes and (batch, length) not in shapes
        return SequenceLayout(length, batch, True) if is_time_first else SequenceLayout(batch, length)

    embedded = {one.name: one for one in forward.outputs if one.ids is not None and one.ids.dim() in (1, 2)}
    words = [one for one in embedded.values() if not _NOT_WORDS.search(one.name[0])] or [*embedded.values()]
    # Of ids that the model is called with, or else of those that count no positions; the largest tables of these.
    called_with = [one for one in words if any(_equal(one.ids, each) for each in forward.tensors.values())]
    words = called_with or [one for one in words if not _counts(one.ids)] or words
    if words:
        most = max(int(one.module.num_embeddings) for one in words)  # type: ignore[arg-type]
        found = {one.name: layout(tuple(one.ids.shape)) for one in words if one.module.num_embeddings == most}  # type: ignore[union-attr]
        *others, last = found  # a decoder's come last
        alike = [name for name in others if found[name].batch == found[last].batch and found[name].length > 1]
        return Sequences((last, *alike), tuple(found[name] for name in (last, *alike)))
    floats = [tuple(one.shape) for one in forward.tensors.values() if one.is_floating_point()]
    for shape in floats:
        if len(shape) > 2 or (len(shape) == 2 and shape[0] in {length for _, length in shapes}):
            return Sequences((None,), (layout(shape[:2] if len(shape) > 2 else shape[:1]),))
    raise InputError("it embeds no ids and is given no vectors [B, T, D], so no position can be changed")


def tokens_of(forward: Forward, hints: CollectedHints, sequences: Sequences, which: int) -> Bool[np.ndarray, "B T"]:
    """Return which positions of a sequence are no padding: by its embedding, or by an attention mask of its shape."""
    from attncli.files import to_numpy

    batch, length, _ = sequences.layouts[which]
    for kind in ("tokens", "unpadded"):
        if (values := hints.of(kind, batch, length)) is not None:
            return values.astype(bool)
    for name, tensor in forward.tensors.items():
        if len(sequences.names) > 1 and (which > 0) == bool(re.search("decoder|tgt|target", name)):
            continue
        if "mask" in name and tuple(tensor.shape) == (batch, length):
            values = to_numpy(tensor)
            if np.isin(values, (0, 1)).all() and values.any(axis=1).all():
                return values == (0 if "key_padding" in name else 1)
    return np.ones((batch, length), bool)


def past_of(calls: Sequence[AttentionCall], length: int) -> int:
    """Return how many keys stand in a cache before so many positions."""
    pasts = (call.shape[3] - call.shape[2] for call in calls if call.shape[2] == length)
    return min((one for one in pasts if one >= 0), default=0)


def _equal(ids: Any, argument: Any) -> bool:
    return ids.shape == argument.shape and bool((ids == argument).all())


def _counts(ids: Any) -> bool:
    """Return whether ids count positions."""
    return ids.shape[-1] > 1 and bool((ids.diff(dim=-1) == 1).all())
