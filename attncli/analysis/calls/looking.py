"""A call looked at: only what is new is copied and analysed, and what is known is known again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, Generic, TypeVar

from attncli.analysis.calls.caches import Before, Past, last_seen, past_of, without_empty_slots
from attncli.analysis.calls.findings import findings_of
from attncli.analysis.calls.layout import findings_of_layout
from attncli.analysis.calls.masks import CallMask, Read, mask_of, read
from attncli.analysis.calls.passes import Pass
from attncli.analysis.calls.steps import Taken
from attncli.recording.call import AttentionCall, MaskArgument
from attncli.recording.detach import Memory, copied
from attncli.recording.input_hint import InputHint

Value = TypeVar("Value")
_MOST_BYTES = 2**25  # of the masks of what is kept


class Latest(Generic[Value]):
    """What was made last, so that a program whose masks are new at every step fills no memory.

    Args:
        most: how many are kept.
        size: gives the bytes that one takes; of large ones fewer are kept, and the last in any case.
    """

    def __init__(self, most: int, size: Callable[[Value], int] = lambda _: 0) -> None:
        self._made: OrderedDict[Hashable, Value] = OrderedDict()
        self._most, self._size = most, size
        self._bytes = 0

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return what was made for a key, or make it."""
        if key in self._made:
            self._made.move_to_end(key)
            return self._made[key]
        made = self._made[key] = make()
        self._bytes += self._size(made)
        while len(self._made) > 1 and (len(self._made) > self._most or self._bytes > _MOST_BYTES):
            _, oldest = self._made.popitem(last=False)
            self._bytes -= self._size(oldest)
        return made


class Looking:
    """Looks at calls while the program waits; it keeps none of the program's tensors alive."""

    def __init__(self) -> None:
        self._same: Memory[Read] = Memory()  # by the tensor
        self._masks: Latest[CallMask] = Latest(64, lambda mask: mask.size)
        self._taken: Latest[Taken] = Latest(128, lambda taken: taken.size)

    def look(self, call: AttentionCall, here: Pass, before: Before | None = None) -> tuple[Taken, Before]:
        """Return what a call is, what is wrong with it by itself, and what the next one at its place is to know.

        Args:
            call: while the program waits.
            here: what inputs of modules said of its batch.
            before: the call before it at its place.
        """
        if call.device == "meta" and call.unsupported is None:
            call = replace(call, unsupported="tensors without numbers (meta)")
        if call.unsupported is not None and not call.is_mask_read:
            taken = self._taken.get((call.place, call.unsupported, call.findings), lambda: _unread(call))
            return taken, Before(call.shape[3], call.shape[3], False, None)
        reads, unused = (
            tuple(self._read(one, call.dtype) for one in some) for some in (call.masks, call.ignored_masks)
        )
        masks = tuple((one.name, one.convention, one.digest, one.made_at) for one in (*reads, *unused))
        ends = cache(lambda: last_seen((one.allowed for one in reads), call.shape) if reads else None)
        past, after = past_of(call, ends, here.positions(call.shape[2]), before)
        facts = call.api, call.place, call.shape, call.dtype, call.is_causal, call.dropout, call.is_training
        told = here.tokens(call.shape[0], call.shape[3] if past.written is None else past.written)
        asking = here.tokens(call.shape[0], call.shape[2])
        digests = told and told.digest, asking and asking.digest
        key = (*facts, call.windows, call.findings, len(unused), masks, past, digests)
        return self._taken.get(key, lambda: self._look(call, reads, unused, masks, past, told, asking)), after

    def _look(
        self,
        call: AttentionCall,
        reads: tuple[Read, ...],
        unused: tuple[Read, ...],
        masks: Hashable,
        past: Past,
        told: InputHint | None,
        asking: InputHint | None,
    ) -> Taken:
        shape = call.shape if past.written is None else (*call.shape[:3], past.written)
        reads = tuple(without_empty_slots(one, past) for one in reads)
        key = call.is_causal, shape, masks, past.rows, told and told.digest
        tokens = None if told is None else told.values.astype(bool)
        biases, is_cut = (lambda: _biases(call, reads, past)), past.written is not None
        mask = self._masks.get(key, lambda: mask_of(reads, call.is_causal, shape, biases, tokens, is_cut))
        found = (
            *past.findings,
            *findings_of_layout(call, mask),
            *findings_of(call, mask, reads, unused, past.is_grown, asking and asking.values.astype(bool)),
        )
        return Taken(call.place, mask, reads, found, unused=unused)

    def _read(self, given: MaskArgument, dtype: str) -> Read:
        known = self._same.get(given, dtype)
        if known is None:
            known = read(given, dtype)
            self._same.put(given, dtype, known)
        return known._replace(made_at=given.made_at)


def _unread(call: AttentionCall) -> Taken:
    return Taken(call.place, None, (), call.findings, call.unsupported)


def _biases(call: AttentionCall, reads: tuple[Read, ...], past: Past) -> Iterator[Any]:
    return (copied(given)[..., : past.written] for given, one in zip(call.masks, reads, strict=True) if one.has_bias)
