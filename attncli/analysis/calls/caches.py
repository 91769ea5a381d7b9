"""The keys that stand before the queries of a call: those of a cache, how many of its slots are written, and with what.

A static cache has more slots than keys. How many are written is said by its mask, which begins neither at the first nor
at the last slot, by the positions of the queries, by the call before, or by the slots themselves, which are still zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.masks.findings import Finding
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
    is_static: bool  # whether its keys were those of a static cache
    last: Int[np.ndarray, "#B"] | None  # the position of the last query of each batch row, where that is known
    traits: CallTraits | None = None


class CacheState(NamedTuple):
    """What stands before the queries of a call."""

    is_grown: bool = False  # the keys are those of the call before, and one more for each query
    written: int | None = None  # slots of a static cache that hold keys; None where there is none
    rows: tuple[int, ...] = ()  # how many of these each batch row has, where they differ
    findings: tuple[Finding, ...] = ()


def cache_state(
    call: AttentionCall,
    ends: Callable[[], Int[np.ndarray, "#B Q"] | None],
    positions: InputHint | None,
    earlier: EarlierCall | None,
) -> tuple[CacheState, EarlierCall]:
    """Return what stands before the queries of a call, while the program waits, and what the next one is to know.

    Args:
        call: the call.
        ends: gives the last key that each query sees, −1 where it sees none; None where it has no mask.
        positions: of its queries, if they are known.
        earlier: the call before it at its place.
    """
    queries, keys = call.shape[2:]
    is_grown = earlier is not None and 0 < earlier.keys == keys - queries
    first = None  # the position of the first query of each batch row, where they go on by one
    if positions is not None and (positions.values[:, 1:] == positions.values[:, :-1] + 1).all():
        first = positions.values[:, 0]
    may_be_static = queries < keys and not is_grown
    written, rows = _written(call, ends, first, earlier) if may_be_static else (None, ())
    empty = _empty_slots(call, ends, first, earlier) if may_be_static else 0
    found = [*_unwritten(empty), *_written_twice(call, earlier)]
    last = positions.values[:, -1] if positions is not None and positions.size else None
    if is_grown and earlier is not None and positions is not None and last is not None:
        found += _positions_again(positions, earlier)
    return CacheState(is_grown, written, rows, tuple(found)), EarlierCall(keys, written is not None or empty > 0, last)


def _written(
    call: AttentionCall,
    ends: Callable[[], Int[np.ndarray, "#B Q"] | None],
    first: Int[np.ndarray, "#B"] | None,
    earlier: EarlierCall | None,
) -> tuple[int | None, tuple[int, ...]]:
    """Return how many slots of a static cache are written, and how many in each batch row where they differ."""
    queries, keys = call.shape[2:]
    is_new = earlier is None or earlier.keys != keys
    is_static = earlier is not None and not is_new and earlier.is_static
    if call.is_causal:  # aligned top-left, as it is right for the first queries of a cache
        return (queries if is_static or _are_empty(call, queries) else None), ()
    own = ends()
    written = 0 if own is None else int(own.max()) + 1
    if own is None or not queries <= written < keys:
        return None, ()
    is_causal = queries > 1 and bool((own.max(axis=0) == np.arange(written - queries, written)).all())
    is_known = first is not None and int(first.max()) + queries == written
    is_at_its_end = is_known and (is_causal or (queries == 1 and is_new))
    if not (is_static or is_at_its_end or (is_causal and written > queries) or _are_empty(call, written)):
        return None, ()
    rows = own[:, -1] + 1
    differ = queries == 1 and len(rows) > 1 and first is not None and np.array_equal(first + 1, rows)
    return written, tuple(rows.tolist()) if differ else ()


def _are_empty(call: AttentionCall, slot: int) -> bool:
    """Return whether nothing was written to any slot from one on."""
    return call.k is not None and not bool(call.k[..., slot:, :].any())


def _empty_slots(
    call: AttentionCall,
    ends: Callable[[], Int[np.ndarray, "#B Q"] | None],
    first: Int[np.ndarray, "#B"] | None,
    earlier: EarlierCall | None,
) -> int:
    """Return how many slots are seen that nothing was written to: whose keys are 0 in all heads and batch rows.

    That they are slots of a cache is said by positions or by the call before; without, the queries are the first ones
    of it. One more key of zeros is what `add_zero_attn` adds.
    """
    queries, keys = call.shape[2:]
    if call.k is None or call.is_causal:
        return 0
    own = ends()
    seen = keys if own is None else int(own.max()) + 1
    if seen <= queries or bool(call.k[..., seen - 1, :].any()):
        return 0
    slots = call.k[..., :seen, :].ne(0).any(-1).flatten(0, -2).any(0).nonzero()
    written = int(slots[-1]) + 1 if len(slots) else 0
    is_known = first is not None and int(first.max()) + queries == written
    is_first = written == queries and seen - written > 1
    is_static = earlier is not None and earlier.keys == keys and earlier.is_static
    return seen - written if is_known or is_first or is_static else 0


def _unwritten(empty: int) -> Iterator[Finding]:
    if empty:
        message = f"attends to {plural(empty, 'unwritten slot')} of a static cache"
        advice = "mask them: torch.arange(slots) <= positions[:, None]"
        yield Finding("cache", "error", message, empty, advice=advice)


def _written_twice(call: AttentionCall, earlier: EarlierCall | None) -> Iterator[Finding]:
    """Yield that the keys of the queries stand in the cache twice."""
    queries, keys = call.shape[2:]
    before = 0 if earlier is None or earlier.keys >= keys else earlier.keys
    if keys != before + 2 * queries or (queries == 1 and not before) or call.v is None:
        return
    last, others = call.v[..., -queries:, :], call.v[..., -2 * queries : -queries, :]
    if bool(last.any()) and bool((last == others).all()):
        which = "the last key is" if queries == 1 else f"the last {queries} keys are"
        message = f"{which} in the cache twice{', with equal values' * (queries > 1)}"
        yield Finding("cache", "error", message, queries, advice="append keys and values once for each layer and step")


def _positions_again(positions: InputHint, earlier: EarlierCall) -> Iterator[Finding]:
    """Yield that queries behind a cache stand at positions that its keys have."""
    first, last, queries = positions.values[:, 0], earlier.last, positions.values.shape[1]
    # As many keys more as there were are another stream of the same words (ProphetNet), unless it is one.
    if last is None or 1 < queries == earlier.keys or len({len(first), len(last)} - {1}) > 1 or (first > last).any():
        return
    message = (
        f"the query behind a cache has position {int(first[0])}, and the cache already has keys up to position "
        f"{int(last[0])}"
    )
    yield Finding("positions", "error", message, positions.size, advice="continue positions after the cache")


def without_empty_slots(mask: MaskReading, cache: CacheState) -> MaskReading:
    """Return a mask over the slots that are written; those that a row of the batch has not written yet hide nothing."""
    if cache.written is None or mask.allowed.shape[3] == 1:
        return mask
    allowed = mask.allowed[..., : cache.written]
    if cache.rows:
        allowed = allowed | (np.arange(cache.written) >= np.array(cache.rows)[:, None])[:, None, None]
    return mask._replace(allowed=allowed)


def last_seen(
    masks: Iterable[Bool[np.ndarray, "_ _ _ _"]], shape: tuple[int, int, int, int]
) -> Int[np.ndarray, "#B Q"]:
    """Return the last key that each query sees in some head, −1 where it sees none."""
    _, _, queries, keys = shape
    allowed: Bool[np.ndarray, "#B #Q #K"] = np.any(reduce(np.logical_and, masks), axis=1)
    last = np.where(allowed.any(axis=2), keys - 1 - np.argmax(allowed[..., ::-1], axis=2), -1)
    return np.broadcast_to(last, (len(allowed), queries))
