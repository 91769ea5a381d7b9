"""A call analysed: only what is new is copied, and equal calls are one object."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, Generic, TypeVar

from attncli.analysis.calls.caches import CacheReader, EarlierCall, without_empty_slots
from attncli.analysis.calls.continuity import contradictions, traits_of, turns_of
from attncli.analysis.calls.findings import findings_of
from attncli.analysis.calls.masks import CallMask, MaskReading, mask_of, read_mask
from attncli.analysis.calls.steps import RecordedCall, ThreadState
from attncli.recording.call import AttentionCall, MaskArgument
from attncli.recording.detach import TensorCache, mask_values

Value = TypeVar("Value")
_MOST_BYTES = 2**25  # of the masks of what is kept


class LRUCache(Generic[Value]):
    """Keeps what was made last, so that a program whose masks are new at every step fills no memory."""

    def __init__(self, most: int, size: Callable[[Value], int]) -> None:
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


class CallAnalyzer:
    """Analyses calls while the program waits; it keeps none of the program's tensors alive."""

    def __init__(self) -> None:
        self._readings: TensorCache[MaskReading] = TensorCache()
        self._masks: LRUCache[CallMask] = LRUCache(64, lambda mask: mask.size)
        self._calls: LRUCache[RecordedCall] = LRUCache(128, lambda call: call.size)

    def record(
        self, call: AttentionCall, here: ThreadState, earlier: EarlierCall | None = None
    ) -> tuple[RecordedCall, EarlierCall]:
        """Return a call with its findings, and what the next one at its place needs."""
        if call.device == "meta" and call.unsupported is None:
            call = replace(call, unsupported="tensors without numbers (meta)")
        if call.unsupported is not None and not call.is_mask_read:
            unread = RecordedCall(call.place, None, (), call.findings, call.unsupported)
            key: Hashable = call.place, call.unsupported, call.findings
            return self._calls.get(key, lambda: unread), EarlierCall(call.shape[3], False, None)
        masks, unused = (
            tuple(self._read(one, call.dtype) for one in some) for some in (call.masks, call.ignored_masks)
        )
        state, after = CacheReader(call, masks, here.positions(call.shape[2]), earlier).state()
        shape = call.shape if state.written is None else (*call.shape[:3], state.written)
        of_keys, of_queries = (here.tokens(shape[0], size) for size in (shape[3], shape[2]))
        digests = of_keys and of_keys.digest, of_queries and of_queries.digest
        mask_key = tuple((one.name, one.convention, one.digest, one.made_at) for one in (*masks, *unused))
        cut = tuple(without_empty_slots(one, state) for one in masks)

        def make_mask() -> CallMask:
            tokens = None if of_keys is None else of_keys.values.astype(bool)
            return mask_of(cut, call.is_causal, shape, tokens, state.written is not None)

        mask = self._masks.get((call.is_causal, shape, mask_key, state.rows, digests[0]), make_mask)
        before = earlier.traits if earlier is not None and state.is_grown else None
        pairs = [(argument, one) for argument, one in zip(call.masks, masks, strict=True) if one.has_bias]
        bias: Any = sum(mask_values(argument)[..., : state.written] for argument, _ in pairs) if pairs else None
        turns = turns_of(call)
        broken = () if before is None else (*contradictions(mask, bias, turns, before),)

        def make() -> RecordedCall:
            words = None if of_queries is None else of_queries.values.astype(bool)
            found = (*state.findings, *broken, *findings_of(call, mask, cut, unused, state.is_grown, words))
            return RecordedCall(call.place, mask, cut, found, unused=unused)

        facts = call.api, call.place, call.shape, call.dtype, call.is_causal, call.dropout, call.is_training
        key = *facts, str(call.scale_factors), call.findings, len(unused), mask_key, state, digests, broken
        return self._calls.get(key, make), after._replace(traits=traits_of(mask, bias, turns, before))

    def _read(self, argument: MaskArgument, dtype: str) -> MaskReading:
        reading = self._readings.get(argument, dtype, lambda: read_mask(argument, dtype))
        return reading._replace(made_at=argument.made_at)
