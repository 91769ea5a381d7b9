"""What the inputs of a forward say: which vectors are those of its tokens, and which of them are padding."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.analysis.calls.masks import together
from attncli.errors import InputError
from attncli.masks.conventions import read_added
from attncli.recording.detach import mask_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Int

    from attncli.masks.expressions import Numbers
    from attncli.recording.call import AttentionCall, MaskArgument
    from attncli.recording.input_hint import InputHint
    from attncli.recording.rerun import Forward, ModuleOutput, OutputName, SequenceLayout

_NOT_WORDS = re.compile("pos|wpe|type|segment")


class CollectedHints:
    """What the inputs of modules say of their positions, in the program's own forward; see `recording.input_hint`."""

    def __init__(self) -> None:
        self.all: list[InputHint] = []
        self._depth = 0

    def of(self, kind: str, is_sure: bool, batch: int, length: int) -> Int[np.ndarray, "B T"] | None:
        """Return what was said first of a batch of this shape; None where nothing was."""
        said = [one.values for one in self.all if (one.kind, one.is_sure) == (kind, is_sure)]
        fits = [one for one in said if one.shape[1] == length]
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

    def begin_forward(self) -> None:
        """See `Hints` of `recording.input_hint`."""

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


class SeenCalls:
    """The attention calls of a forward, of which nothing is kept but where they are and what their masks show.

    Attributes:
        places: the line of each.
        shapes: `(B, H, Q, K)` of each.
    """

    def __init__(self) -> None:
        self.places: list[str] = []
        self.shapes: list[tuple[int, int, int, int]] = []
        self._shown: dict[tuple[int, int], Bool[np.ndarray, "_ Q K"]] = {}

    def take(self, call: AttentionCall) -> None:
        """Take in a call, while the program waits."""
        self.places.append(str(call.place))
        self.shapes.append(call.shape)
        if call.unsupported is None or call.is_mask_read:
            _, _, queries, keys = call.shape
            shown = np.asarray(together(map(_allowed, call.masks), call.is_causal, call.shape).any(axis=1))
            shown = np.broadcast_to(shown, (len(shown), queries, keys))
            earlier = self._shown.get((queries, keys), shown)
            if len({len(earlier), len(shown), 1}) < 3:
                self._shown[queries, keys] = earlier | shown

    def shown(self, batch: int, length: int, past: int) -> Bool[np.ndarray, "B T T"]:
        """Return which positions masks show to each query, in any layer."""
        found = self._shown.get((length, past + length))
        if found is None or len(found) not in (1, batch):
            return np.zeros((batch, length, length), bool)
        return np.broadcast_to(found[..., past:], (batch, length, length))


def _allowed(mask: MaskArgument) -> Bool[np.ndarray, "#B #H #Q #K"]:
    values = mask_values(mask)
    if mask.convention == "additive":
        return read_added(values).allowed
    return values.astype(bool) == (mask.convention == "attend")


class InputSequence(NamedTuple):
    """A sequence of a forward.

    Attributes:
        sources: the embeddings of its ids, or the argument that is its vectors.
        layout: how it lies in tensors.
        ids: of the embeddings; None of vectors.
        is_first: whether the claim is about its outputs.
    """

    sources: tuple[OutputName | str, ...]
    layout: SequenceLayout
    ids: Any = None
    is_first: bool = False


def sequences_of(forward: Forward, shapes: Sequence[tuple[int, int, int, int]]) -> list[InputSequence]:
    """Return the sequences of a forward, of ids that it embeds, or else of the vectors that it is called with.

    The one that the claim is about comes first; others are as of an encoder.

    Args:
        forward: which has ended.
        shapes: of its attention calls.

    Raises:
        InputError: there are none.
    """
    from attncli.recording.rerun import SequenceLayout

    lengths = [(batch, length) for batch, _, length, _ in shapes]
    is_time_first_module = any(getattr(one, "batch_first", True) is False for one in forward.module.modules())

    def layout(shape: tuple[int, ...]) -> SequenceLayout:
        batch, length = (1, shape[0]) if len(shape) == 1 else shape[:2]
        is_time_first = (length, batch) in lengths and (is_time_first_module or (batch, length) not in lengths)
        return SequenceLayout(length, batch, True) if is_time_first else SequenceLayout(batch, length)

    embedded = [one for one in forward.outputs.values() if one.ids is not None and one.ids.dim() in (1, 2)]
    named = [one for one in embedded if not _NOT_WORDS.search(one.name[0])] or embedded
    # Of ids that the model is called with, or else of those that count no positions; the largest tables of these.
    called_with = [one for one in named if any(equal_ids(one.ids, each) for each in forward.tensors.values())]
    if words := called_with or [one for one in named if not _counts(one.ids)]:
        most = max(_size(one) for one in words)
        # Those of a decoder may be made of its labels.
        largest = [one for one in named if _size(one) == most and (one in words or not _counts(one.ids))]
        words = [one for one in named if any(equal_ids(one.ids, each.ids) for each in largest)]
        found = ((one.name, one.ids) for one in words)
        *others, last = (
            InputSequence((name,), layout(tuple(ids.shape)), ids) for name, ids in found if ids is not None
        )
        # A decoder's come last.
        alike = [one for one in others if one.layout.batch == last.layout.batch and one.layout.length > 1]
        return [last._replace(is_first=True), *alike]
    for name, tensor in forward.tensors.items():
        shape = tuple(tensor.shape)
        is_unbatched = len(shape) == 2 and shape[0] in {length for _, length in lengths}
        if tensor.is_floating_point() and (len(shape) > 2 or is_unbatched):
            return [InputSequence((name,), layout(shape[:1] if is_unbatched else shape[:2]), is_first=True)]
    raise InputError("it embeds no ids and is given no vectors [B, T, D], so no position can be changed")


def tokens_of(
    forward: Forward, hints: CollectedHints, sequence: InputSequence, number: int, past: int
) -> Bool[np.ndarray, "B T"] | None:
    """Return which positions of a sequence are no padding; None where nothing says.

    An embedding says it, or an attention mask of its shape, of what is cached too.

    Args:
        forward: which has ended.
        hints: what its inputs say.
        sequence: of which.
        number: how many sequences there are.
        past: how many keys stand in a cache before it.
    """
    from attncli.files import to_numpy

    batch, length, _ = sequence.layout
    sure, unsure = (hints.of("tokens", is_sure, batch, length) for is_sure in (True, False))
    unpadded = hints.of("unpadded", True, batch, length)
    if (values := unpadded if sure is None else sure) is not None:
        return values.astype(bool)
    for name, tensor in forward.tensors.items():
        if number > 1 and sequence.is_first != bool(re.search("decoder|tgt|target", name)):
            continue
        if "mask" in name and tuple(tensor.shape) == (batch, past + length):
            values = to_numpy(tensor)
            if np.isin(values, (0, 1)).all() and values.any(axis=1).all():
                return values[:, past:] == (0 if "key_padding" in name else 1)
    if unsure is not None and number > 1 and sequence.is_first:
        unsure = unsure | (np.arange(length) == 0)  # a decoder may begin with the id of padding
    return None if unsure is None else unsure.astype(bool)


def past_of(shapes: Sequence[tuple[int, int, int, int]], length: int) -> int:
    """Return how many keys stand in a cache before so many positions."""
    return min((keys - queries for _, _, queries, keys in shapes if queries == length <= keys), default=0)


def prefix_of(forward: Forward, batch: int, length: int) -> Numbers | None:
    """Return how long the prefix of each row is, whose tokens have the type 0 before others of the type 1."""
    from attncli.files import to_numpy

    types = forward.tensors.get("token_type_ids")
    if types is None or tuple(types.shape) != (batch, length):
        return None
    values = to_numpy(types)
    is_prefix = bool(np.isin(values, (0, 1)).all()) and bool((np.diff(values, axis=1) >= 0).all())
    return tuple((int(count),) for count in (values == 0).sum(axis=1)) if is_prefix else None


def equal_ids(ids: Any, argument: Any) -> bool:
    """Return whether ids are those of another tensor."""
    return ids is not None and ids.shape == argument.shape and bool((ids == argument).all())


def _size(output: ModuleOutput) -> int:
    """Return how many vectors an embedding has."""
    return int(output.module.num_embeddings)  # type: ignore[arg-type]


def _counts(ids: Any) -> bool:
    """Return whether ids count positions."""
    return ids.shape[-1] > 1 and bool((ids.diff(dim=-1) == 1).all())
