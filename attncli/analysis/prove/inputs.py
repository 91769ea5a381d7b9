"""Inputs of a forward: which vectors are those of its tokens, and which of them are padding."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from attncli.analysis.calls.masks import together
from attncli.analysis.calls.steps import ThreadState
from attncli.analysis.prove.claim import parsed
from attncli.errors import InputError, UsageError
from attncli.files import to_numpy
from attncli.masks.conventions import read_as
from attncli.masks.expressions import Pad, is_padding, leaves
from attncli.masks.mask_grid import MaskSize, bind_lengths, materialise
from attncli.recording.detach import mask_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Int

    from attncli.analysis.prove.claim import Claim
    from attncli.masks.expressions import Numbers
    from attncli.recording.call import AttentionCall
    from attncli.recording.input_hint import InputHint
    from attncli.recording.rerun import Forward, OutputName, SequenceLayout

_NOT_WORDS = re.compile("pos|wpe|type|segment")
_NOT_IDS = re.compile("label|mask|length|(^|[._])(pos|type|segment)")  # of arguments
_STATED_MASK = re.compile("(?<!key_padding_)mask")  # one of the attention's own is on trial
_SPECIAL = re.compile("_token_(id|index)$")  # of a configuration


class CollectedHints(ThreadState):
    """Collects the hints of inputs of modules during a forward, for its attention calls too."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[InputHint] = []  # of the forward, and then those before it, the last first
        self.is_paused = False  # while the forward runs again, whose hints are ignored
        self._depth, self._before = 0, 0

    def of(self, kind: str, is_sure: bool, batch: int, length: int) -> Int[np.ndarray, "B T"] | None:
        """Return the first hint for a batch of this shape, or None."""
        values = [hint.values for hint in self.all if (hint.kind, hint.is_sure) == (kind, is_sure)]
        fits = [rows for rows in values if rows.shape[1] == length]
        return next((np.broadcast_to(values, (batch, length)) for values in fits if len(values) in (1, batch)), None)

    def add(self, hint: InputHint) -> None:
        """See `Hints` of `recording.input_hint`."""
        if not self.is_paused:
            super().add(hint)
            self.all.insert(len(self.all) - self._before, hint)

    def begin_module(self, is_outermost: bool) -> tuple[int, int]:
        """See `Hints` of `recording.input_hint`; those of a forward begin with its outermost module."""
        if self._depth == 0 and not self.is_paused:
            self.all = [pending.hint for pending in reversed(self.pending)]
            self._before = len(self.all)
        self._depth += 1
        return super().begin_module(False)

    def end_module(self, begun: tuple[int, int]) -> int:
        """See `Hints` of `recording.input_hint`."""
        self._depth -= 1
        return super().end_module(begun)


class SeenCalls:
    """The lines, shapes and masks of the attention calls of a forward."""

    def __init__(self) -> None:
        self.places: list[str] = []  # the line of each
        self.shapes: list[tuple[int, int, int, int]] = []  # `(B, H, Q, K)` of each
        self.firsts: dict[int, dict[str, Any]] = {}  # tensors of the first call of each line, by its number
        self.count = 0  # of calls, with those of runs that attn added
        self._shown: dict[tuple[int, int], Bool[np.ndarray, "_ Q K"]] = {}

    @property
    def masking(self) -> tuple[object, ...]:
        """The shapes of the calls, and whether a query of each shape sees a later key: it differs behind a cache."""
        later = (bool(np.triu(shown.any(axis=0), keys - queries + 1).any())
                 for (queries, keys), shown in self._shown.items())  # fmt: skip
        return (*self.shapes, *later)

    def take(self, call: AttentionCall) -> None:
        """Take in a call, while the program waits."""
        self.count += 1
        if str(call.place) not in self.places:
            tensors = [(name, getattr(call, name)) for name in ("q", "k", "v", "output")]
            self.firsts[len(self.places)] = {name: one.detach().clone() for name, one in tensors if one is not None}
        self.places.append(str(call.place))
        self.shapes.append(call.shape)
        if call.unsupported is None or call.is_mask_read:
            _, _, queries, keys = call.shape
            planes = (read_as(mask_values(one), one.convention).allowed for one in call.masks)
            shown = np.asarray(together(planes, call.is_causal, call.shape).any(axis=1))
            shown = np.broadcast_to(shown, (len(shown), queries, keys))
            earlier = self._shown.get((queries, keys), shown)
            if len({len(earlier), len(shown), 1}) < 3:
                self._shown[queries, keys] = earlier | shown

    def past(self, length: int) -> int:
        """Return how many keys of a cache come before a row of positions."""
        return min((keys - queries for _, _, queries, keys in self.shapes if queries == length <= keys), default=0)

    def tokens(self, batch: int, length: int) -> KnownTokens | None:
        """Return which positions no mask hides from all queries, where padding at one end of rows may be hidden."""
        shown = self._shown.get((length, length))
        if shown is None or len(shown) != batch:
            return None
        tokens: Bool[np.ndarray, "B T"] = np.asarray(shown.any(axis=1))
        inside = np.maximum.accumulate(tokens, axis=1) & np.maximum.accumulate(tokens[:, ::-1], axis=1)[:, ::-1]
        return KnownTokens(tokens, "calls") if (tokens == inside).all() and tokens.any(axis=1).all() else None

    def shown(self, batch: int, length: int, past: int) -> Bool[np.ndarray, "B T T"]:
        """Return which positions masks show to each query, in any layer."""
        shown = self._shown.get((length, past + length))
        if shown is None or len(shown) not in (1, batch):
            return np.zeros((batch, length, length), bool)
        return np.broadcast_to(shown[..., past:], (batch, length, length))


class InputSequence(NamedTuple):
    """A sequence of a forward."""

    sources: tuple[OutputName | str, ...]  # the embeddings of its ids, or the argument that is its vectors
    layout: SequenceLayout
    ids: Any = None  # of the embeddings, or that the model is called with; None of vectors
    arguments: tuple[str, ...] = ()  # of the model, that are these ids


def sequences_of(forward: Forward, shapes: Sequence[tuple[int, int, int, int]]) -> list[InputSequence]:
    """Return the sequences of a forward: ids that it embeds, or else vectors or ids that it is called with.

    The one that the claim is about comes first; others are as of an encoder.

    Raises:
        InputError: there are none.
    """
    from attncli.recording.rerun import SequenceLayout

    lengths = [(batch, length) for batch, _, length, _ in shapes]
    is_time_first_module = any(getattr(module, "batch_first", True) is False for module in forward.module.modules())

    def layout(shape: tuple[int, ...]) -> SequenceLayout:
        batch, length = (1, shape[0]) if len(shape) == 1 else shape[:2]
        is_time_first = (length, batch) in lengths and (is_time_first_module or (batch, length) not in lengths)
        return SequenceLayout(length, batch, True) if is_time_first else SequenceLayout(batch, length)

    called = {name: tensor for name, tensor in forward.tensors.items() if _may_be_ids(name, tensor)}
    sequences: list[InputSequence] = []
    outputs = _embedded_ids(forward, called)
    while outputs:
        *_, ids = (output.ids for output in outputs)
        alike = [output.name for output in outputs if _equal_ids(ids, output.ids)]
        outputs = [output for output in outputs if not _equal_ids(ids, output.ids)]
        names = [name for name, tensor in called.items() if _equal_ids(ids, tensor)]
        # Two arguments may be equal, as of an encoder and its decoder, which come in their order.
        parts = [(alike, names)]
        if len(names) == len(alike):
            parts = [([source], [name]) for source, name in zip(alike, names, strict=True)]
        sequences += [InputSequence((*a,), layout(tuple(ids.shape)), ids, (*b,)) for a, b in reversed(parts)]
    if sequences:
        last, *others = sequences  # a decoder's come last
        same_rows = [one for one in others[::-1] if one.layout.batch == last.layout.batch and one.layout.length > 1]
        return [last, *same_rows]
    for name, tensor in forward.tensors.items():
        shape = tuple(tensor.shape)
        is_unbatched = len(shape) == 2 and shape[0] in {length for _, length in lengths}
        if tensor.is_floating_point() and (len(shape) > 2 or is_unbatched):
            return [InputSequence((name,), layout(shape[:1] if is_unbatched else shape[:2]))]
    for name, tensor in called.items():
        if not _counts(tensor):
            return [InputSequence((), layout(tuple(tensor.shape)), tensor, (name,))]
    raise InputError("it embeds no ids and is given no vectors [B, T, D], so no position can be changed")


def _embedded_ids(forward: Forward, called: dict[str, Any]) -> list[Any]:
    """Return the outputs of embeddings of words: of ids that are arguments, or else that count no positions."""

    def size(output: Any) -> int:
        return int(output.module.num_embeddings)

    embedded = [output for output in forward.outputs.values() if output.ids is not None and output.ids.dim() in (1, 2)]
    named = [output for output in embedded if not _NOT_WORDS.search(output.name[0])] or embedded
    words = [output for output in named if any(_equal_ids(output.ids, tensor) for tensor in called.values())]
    words = words or [output for output in named if not _counts(output.ids)]
    most = max(map(size, words), default=0)
    # Those of a decoder may be made of its labels.
    decodes = any("decoder" in name for name, _ in forward.module.named_modules())
    words += [output for output in named if decodes and not _counts(output.ids)]
    ids = [output.ids for output in words if size(output) == most]
    return [output for output in named if any(_equal_ids(output.ids, tensor) for tensor in ids)]


class KnownTokens(NamedTuple):
    """Positions of a sequence that are no padding, and their source."""

    tokens: Bool[np.ndarray, "B T"]
    source: Literal["ids", "argument", "calls"]  # `calls`: the masks that are on trial


def padding_of(
    forward: Forward, inputs: tuple[CollectedHints, SeenCalls, list[InputSequence]], expression: str, lengths: Any
) -> list[KnownTokens]:
    """Return which positions of each sequence are no padding.

    Raises:
        UsageError: the expression has `pad`, and its lengths are not known.
    """
    _, calls, sequences = inputs
    pads: list[Any] = [leaf for leaf in leaves(parsed(expression)) if is_padding(leaf)]
    if lengths is not None:
        pads = [*leaves(bind_lengths(parsed("pad"), lengths))]
    batch, length, _ = sequences[0].layout
    past = calls.past(length)
    known = [_tokens_of(forward, *inputs, which, past) for which in range(len(sequences))]
    if stated := [pad for pad in pads if not isinstance(pad, Pad) or pad.lengths is not None]:
        cells = materialise(stated[0], MaskSize(1, past + length, past + length - 1))
        tokens = np.broadcast_to(cells.reshape(-1, past + length)[:, past:], (batch, length))
        is_argument = known[0] is not None and known[0].source == "argument"
        known[0] = KnownTokens(tokens, "argument" if is_argument else "ids")
    elif pads and batch > 1 and not past and not any(known):
        advice = "pass an attention mask, or give --lengths 6,10 (lengths=[6, 10] in Python)"
        raise UsageError(f"pad has no lengths, and the program states none; {advice}")
    every = [KnownTokens(np.ones(sequence.layout[:2], bool), "ids") for sequence in sequences]
    known[1:] = known[1:] if pads else every[1:]
    return [tokens or full for tokens, full in zip(known, every, strict=True)]


def _tokens_of(
    forward: Forward, hints: CollectedHints, calls: SeenCalls, sequences: list[InputSequence], which: int, past: int
) -> KnownTokens | None:
    """Return which positions of a sequence are no padding; None where that is not known.

    Ids say it by the `padding_idx` of their embedding, then an attention mask that the model is called with, of what
    is cached too, and the masks of attention calls last.
    """
    sequence, is_decoder = sequences[which], len(sequences) > 1 and which == 0
    batch, length, _ = sequence.layout
    for kind in ("tokens", "unpadded"):
        if (hint := hints.of(kind, True, batch, length)) is not None:
            return KnownTokens(hint.astype(bool), "ids")
    for name, tensor in forward.tensors.items():
        is_of_other = len(sequences) > 1 and is_decoder != bool(re.search("decoder|tgt|target", name))
        is_mask = _STATED_MASK.search(name) and tuple(tensor.shape) == (batch, past + length)
        values = to_numpy(tensor) if is_mask and not is_of_other else np.zeros((1, 1))
        if np.isin(values, (0, 1)).all() and values.any(axis=1).all():
            return KnownTokens(values[:, past:] == 1, "argument")
    begins = (np.arange(length) == 0) & is_decoder  # maybe with the id of padding
    if (hint := hints.of("tokens", False, batch, length)) is not None:
        return KnownTokens(hint.astype(bool) | begins, "ids")
    for table in (forward.outputs[name].module for name in sequence.sources if name in forward.outputs):
        if isinstance(index := getattr(table, "padding_idx", None), int):  # such as ids [T, B]
            return KnownTokens((sequence.layout.rows_of(sequence.ids) != index) | begins, "ids")
    return None if past or len(sequences) > 1 else calls.tokens(batch, length)


def other_ids(
    forward: Forward, sequence: InputSequence, padding: KnownTokens, claim: Claim | None, seed: int
) -> Int[np.ndarray, "B T"]:
    """Return other ids of words of the batch for all positions; those that tell more than a word stay.

    Such are padding, unless a mask says which positions it is, the special ids of a configuration, and those by which
    documents of a claim begin or end.
    """
    ids = sequence.layout.rows_of(sequence.ids)
    special: set[int] = set()
    for module in forward.module.modules():
        values = vars(config) if hasattr(config := getattr(module, "config", None), "__dict__") else {}
        special.update(value for name, value in values.items() if _SPECIAL.search(name) and isinstance(value, int))
        index: Any = getattr(module, "padding_idx", None)
        special.update([index] if isinstance(index, int) else [])
    special.update(ids[~padding.tokens].tolist())
    special |= set() if claim is None else _separators(ids, claim)
    words = np.array(sorted(set(ids[padding.tokens].tolist()) - special))
    if len(words) < 2:
        return ids
    chosen = np.random.default_rng(seed).integers(1, len(words), ids.shape)
    other = words[(np.searchsorted(words, ids) + chosen) % len(words)]
    is_word = np.isin(ids, words) & padding.tokens
    return np.where(is_word | (~padding.tokens & (padding.source == "argument")), other, ids)


def _separators(ids: Int[np.ndarray, "B T"], claim: Claim) -> set[int]:
    """Return the id that alone begins documents after the first, or ends those before the last, and is nowhere else."""
    connected = claim.direct | claim.direct.transpose(0, 2, 1)
    is_start = ~np.diagonal(connected, offset=1, axis1=1, axis2=2)
    separators: set[int] = set()
    for candidates in (ids[:, 1:], ids[:, :-1]):
        first = candidates[is_start][:1]
        if len(first) and (candidates[is_start] == first).all() and not (candidates[~is_start] == first).any():
            separators.add(int(first[0]))
    return separators


def prefix_of(forward: Forward, batch: int, length: int) -> Numbers | None:
    """Return how long the prefix of each row is, whose tokens have the type 0 before others of the type 1."""
    types = forward.tensors.get("token_type_ids")
    if types is None or tuple(types.shape) != (batch, length):
        return None
    values = to_numpy(types)
    is_prefix = bool(np.isin(values, (0, 1)).all()) and bool((np.diff(values, axis=1) >= 0).all())
    return tuple((int(count),) for count in (values == 0).sum(axis=1)) if is_prefix else None


def _equal_ids(ids: Any, argument: Any) -> bool:
    """Return whether ids are those of another tensor."""
    return ids is not None and ids.shape == argument.shape and bool((ids == argument).all())


def _may_be_ids(name: str, tensor: Any) -> bool:
    """Return whether an argument may be ids of words."""
    is_whole = not tensor.is_floating_point() and not tensor.is_complex() and tensor.element_size() > 1
    return is_whole and tensor.dim() in (1, 2) and tensor.numel() > 0 and not _NOT_IDS.search(name)


def _counts(ids: Any) -> bool:
    """Return whether ids count positions."""
    return ids.shape[-1] > 1 and bool((ids.diff(dim=-1) == 1).all())
