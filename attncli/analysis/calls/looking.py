"""A call looked at: only what is new is copied and analysed, and what is known is known again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from typing import Any, Generic, TypeVar

from attncli.analysis.calls.findings import findings_of
from attncli.analysis.calls.masks import CallMask, Read, digest_of, mask_of, read
from attncli.analysis.calls.steps import Taken
from attncli.sources.live.call import Call, Given
from attncli.sources.live.copies import Memory, copied
from attncli.sources.live.inputs import Told

Value = TypeVar("Value")


class Latest(Generic[Value]):
    """What was made last, up to a number, so that a program whose masks are new at every step fills no memory."""

    def __init__(self, most: int) -> None:
        self._made: OrderedDict[Hashable, Value] = OrderedDict()
        self._most = most

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return what was made for a key, or make it."""
        if key in self._made:
            self._made.move_to_end(key)
            return self._made[key]
        made = self._made[key] = make()
        if len(self._made) > self._most:
            self._made.popitem(last=False)
        return made


class Looking:
    """Looks at calls while the program waits; it keeps none of the program's tensors alive."""

    def __init__(self) -> None:
        self._same: Memory[Read] = Memory()  # by the tensor
        self._equal: Latest[Read] = Latest(32)  # by its values
        self._masks: Latest[CallMask] = Latest(64)
        self._taken: Latest[Taken] = Latest(128)

    def look(self, call: Call, has_cache: bool = False, tokens: Told | None = None) -> Taken:
        """Return what a call is, and what is wrong with it by itself.

        Args:
            call: while the program waits.
            has_cache: whether its keys are those of the call before it at its place, and one more for each query.
            tokens: which of its keys are no padding, where that is known.
        """
        if call.device == "meta" and call.unread is None:
            call = replace(call, unread="tensors without numbers (meta)")
        if call.unread is not None:
            return self._taken.get((call.place, call.unread, call.findings), lambda: _unread(call))
        reads, unused = (tuple(self._read(one, call.dtype) for one in some) for some in (call.given, call.unused))
        masks = tuple((one.name, one.convention, one.digest) for one in (*reads, *unused))
        facts = (call.api, call.place, call.shape, call.dtype, call.is_causal, call.dropout, call.is_training)
        key = (*facts, call.findings, len(unused), masks, has_cache, tokens and tokens.digest)
        return self._taken.get(key, lambda: self._look(call, reads, unused, masks, has_cache, tokens))

    def _look(
        self,
        call: Call,
        reads: tuple[Read, ...],
        unused: tuple[Read, ...],
        masks: Hashable,
        has_cache: bool,
        tokens: Told | None,
    ) -> Taken:
        key = call.is_causal, call.shape, masks, tokens and tokens.digest
        words = None if tokens is None else tokens.values.astype(bool)
        mask = self._masks.get(
            key, lambda: mask_of(reads, call.is_causal, call.shape, lambda: _biases(call, reads), words)
        )
        found = tuple(findings_of(call, mask, reads, unused, has_cache))
        return Taken(call.place, mask, reads, found, sees_later=mask.rule.expression is None and mask.sees_later)

    def _read(self, given: Given, dtype: str) -> Read:
        known = self._same.get(given, dtype)
        if known is None:
            own = copied(given)
            digest = digest_of(own)
            key = (given.name, given.convention, dtype, digest)
            known = self._equal.get(key, lambda: read(own, dtype, digest))
            self._same.put(given, dtype, known)
        return known


def _unread(call: Call) -> Taken:
    return Taken(call.place, None, (), call.findings, call.unread)


def _biases(call: Call, reads: tuple[Read, ...]) -> Iterator[Any]:
    return (copied(given).values for given, one in zip(call.given, reads, strict=True) if one.has_bias)
