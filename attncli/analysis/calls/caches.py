"""The keys before the queries of a call: those of a cache, how many of its slots are written, and with what.

A static cache has more slots than keys. Its mask shows how many are written, if it ends before the last slot; else the
positions of the queries do, the call before, or the slots themselves, which are still zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.masks.findings import Finding, error
from attncli.text import plural

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

    from attncli.analysis.calls.continuity import CallTraits
    from attncli.analysis.calls.masks import MaskReading
    from attncli.recording.call import AttentionCall
    from attncli.recording.input_hint import InputHint


class EarlierCall(NamedTuple):
    """The call before at the same place."""

    keys: int  # how many it had
    is_static: bool = False  # whether its keys were those of a static cache
    last: Int[np.ndarray, "#B"] | None = None  # the position of the last query of each batch row, where that is known
    traits: CallTraits | None = None


class CacheState(NamedTuple):
    """The keys before the queries of a call."""

    is_grown: bool = False  # the keys are those of the call before, and one more for each query
    written: int | None = None  # slots of a static cache that hold keys; None where there is none
    rows: tuple[int, ...] = ()  # how many of these each batch row has, where they differ
    findings: tuple[Finding, ...] = ()


class CacheReader:
    """Reads the keys before the queries of a call, while the program waits."""

    def __init__(
        self,
        call: AttentionCall,
        masks: tuple[MaskReading, ...],
        positions: InputHint | None,
        earlier: EarlierCall | None,
    ) -> None:
        self.call, self.positions = call, positions
        self.earlier = earlier or EarlierCall(0)
        self.queries, self.keys = call.shape[2:]
        self.is_static = self.earlier.keys == self.keys and self.earlier.is_static
        self.first = None  # the position of the first query of each batch row, where they increase by one
        if positions is not None and (positions.values[:, 1:] == positions.values[:, :-1] + 1).all():
            self.first = positions.values[:, 0]
        # The last key that each query sees in some head, −1 where it sees none; None without a mask.
        self.ends: Int[np.ndarray, "#B Q"] | None = None
        if masks and self.queries < self.keys:
            seen: Bool[np.ndarray, "#B #Q #K"] = np.any(reduce(np.logical_and, [one.allowed for one in masks]), axis=1)
            last = np.where(seen.any(axis=2), self.keys - 1 - np.argmax(seen[..., ::-1], axis=2), -1)
            self.ends = np.broadcast_to(last, (len(seen), self.queries))

    def state(self) -> tuple[CacheState, EarlierCall]:
        """Return the state, and what the next call at the place needs."""
        earlier, positions = self.earlier, self.positions
        is_grown = 0 < earlier.keys == self.keys - self.queries
        may_be_static = self.queries < self.keys and not is_grown
        written, rows = self._written() if may_be_static else (None, ())
        empty = self._empty_slots() if may_be_static else 0
        findings = [*self._written_twice()]
        if empty:
            message = f"attends to {plural(empty, 'unwritten slot')} of a static cache"
            findings.insert(0, error("cache", message, empty, "mask them: torch.arange(slots) <= positions[:, None]"))
        last = positions.values[:, -1] if positions is not None and positions.size else None
        if is_grown and positions is not None and last is not None:
            findings += _positions_again(positions, earlier)
        is_static = written is not None or empty > 0
        return CacheState(is_grown, written, rows, tuple(findings)), EarlierCall(self.keys, is_static, last)

    def _written(self) -> tuple[int | None, tuple[int, ...]]:
        """Return how many slots of a static cache are written, and how many in each batch row where they differ."""
        queries, own = self.queries, self.ends
        if self.call.is_causal:  # aligned top-left, as it is right for the first queries of a cache
            return (queries if self.is_static or self._are_empty(queries) else None), ()
        written = 0 if own is None else int(own.max()) + 1
        if own is None or not queries <= written < self.keys:
            return None, ()
        is_causal = queries > 1 and bool((own.max(axis=0) == np.arange(written - queries, written)).all())
        is_new = self.earlier.keys != self.keys
        is_at_its_end = self._ends_at(written) and (is_causal or (queries == 1 and is_new))
        is_shown = self.is_static or is_at_its_end or (is_causal and written > queries)
        if not is_shown and not self._are_empty(written):
            return None, ()
        rows = own[:, -1] + 1
        differ = queries == 1 and len(rows) > 1 and self.first is not None and np.array_equal(self.first + 1, rows)
        return written, tuple(rows.tolist()) if differ else ()

    def _ends_at(self, written: int) -> bool:
        return self.first is not None and int(self.first.max()) + self.queries == written

    def _are_empty(self, slot: int) -> bool:
        return self.call.k is not None and not bool(self.call.k[..., slot:, :].any())

    def _empty_slots(self) -> int:
        """Return how many slots are seen that nothing was written to: whose keys are 0 in all heads and batch rows.

        Positions or the call before show that they are slots of a cache; without, the queries are the first ones of it.
        One more key of zeros is what `add_zero_attn` adds.
        """
        k = self.call.k
        if k is None or self.call.is_causal:
            return 0
        seen = self.keys if self.ends is None else int(self.ends.max()) + 1
        if seen <= self.queries or bool(k[..., seen - 1, :].any()):
            return 0
        slots = k[..., :seen, :].ne(0).any(-1).flatten(0, -2).any(0).nonzero()
        written = int(slots[-1]) + 1 if len(slots) else 0
        is_first = written == self.queries and seen - written > 1
        return seen - written if self._ends_at(written) or is_first or self.is_static else 0

    def _written_twice(self) -> Iterator[Finding]:
        """Yield that the keys of the queries are in the cache twice."""
        queries, v = self.queries, self.call.v
        before = self.earlier.keys if self.earlier.keys < self.keys else 0
        if self.keys != before + 2 * queries or (queries == 1 and not before) or v is None:
            return
        last, others = v[..., -queries:, :], v[..., -2 * queries : -queries, :]
        if bool(last.any()) and bool((last == others).all()):
            message = "the last key is" if queries == 1 else f"the last {queries} keys are"
            message += f" in the cache twice{', with equal values' * (queries > 1)}"
            yield error("cache", message, queries, "append keys and values once for each layer and step")


def _positions_again(positions: InputHint, earlier: EarlierCall) -> Iterator[Finding]:
    """Yield that queries behind a cache have positions that its keys have."""
    first, last, queries = positions.values[:, 0], earlier.last, positions.values.shape[1]
    # As many keys more as there were are another stream of the same words (ProphetNet), unless it is one.
    if last is None or 1 < queries == earlier.keys or len({len(first), len(last)} - {1}) > 1 or (first > last).any():
        return
    message = f"the query behind a cache has position {int(first[0])}, and the cache already has keys up to position "
    yield error("positions", f"{message}{int(last[0])}", positions.size, "continue positions after the cache")


def without_empty_slots(mask: MaskReading, cache: CacheState) -> MaskReading:
    """Return a mask over the slots that are written; those that a row of the batch has not written yet hide nothing."""
    if cache.written is None or mask.allowed.shape[3] == 1:
        return mask
    allowed = mask.allowed[..., : cache.written]
    if cache.rows:
        allowed = allowed | (np.arange(cache.written) >= np.array(cache.rows)[:, None])[:, None, None]
    return mask._replace(allowed=allowed)
