"""The keys before the queries of a call: those of a cache, how many slots are written, and what the call contradicts.

A static cache has more slots than keys. Its mask shows how many are written, if it ends before the last slot; else the
positions of the queries do, the call before, or the slots themselves, which are still zero.

A call behind a cache is causal as the calls before, with their window, bias and rotary positions. Rotary positions
show between a projection and the product: a rotation keeps the length of each pair of numbers, and turns it by a
frequency times the position, however it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.files import to_numpy
from attncli.masks.expressions import atoms_named, conjuncts
from attncli.masks.findings import Finding, error, note
from attncli.text import plural

if TYPE_CHECKING:
    from jaxtyping import Bool, Complex, Float, Int

    from attncli.analysis.calls.masks import CallMask, MaskReading
    from attncli.recording.call import AttentionCall
    from attncli.recording.input_hint import InputHint

    Turns = Mapping[str, Complex[np.ndarray, "R P"]]
    Bias = Float[np.ndarray, "#B #H #Q #K"]

_ROUNDING = 0.02  # of the largest step of a bias: bfloat16 keeps two digits
_ROWS = 8  # the last ones of a call, which are measured
_MOST_POSITIONS = 1 << 14
_ALIKE, _SAME, _OTHER = 1e-4, 0.02, 0.1  # lengths of a pair; turns that are equal, and that are not


class Rotation(NamedTuple):
    """The rotary embedding of a module, as a call showed it."""

    frequencies: Float[np.ndarray, " P"]  # radians a position, of each pair
    last: int  # the position of the last row

    def positions(self, turns: Complex[np.ndarray, "R P"], queries: int) -> Int[np.ndarray, " R"] | None:
        """Return the positions of the last rows of the next queries; None where no whole numbers fit."""
        if turns.shape[1:] != self.frequencies.shape:
            return None

        def distances(rows: Complex[np.ndarray, "*N P"], positions: Int[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
            apart = np.abs(rows - np.exp(1j * positions[:, None] * self.frequencies))
            return np.where(rows == 0, 0, apart).max(axis=-1)  # pairs too small to show a turn are 0

        predicted = self.last + queries + 1 - len(turns) + np.arange(len(turns))
        if (distances(turns, predicted) < _OTHER).all():
            return predicted
        positions = np.array([distances(row, np.arange(_MOST_POSITIONS)).argmin() for row in turns])
        return positions if (distances(turns, positions) < _SAME).all() else None


class CallTraits(NamedTuple):
    """Traits of a call that the calls behind its cache are to share."""

    window: int | None = None  # keys that each query sees at most
    is_causal: bool = False  # whether several queries saw no later key
    # By how much a bias rises from each distance to the next: softmax is the same for a number added to all keys.
    bias: Float[np.ndarray, "H D"] | None = None
    rotations: Mapping[str, Rotation] = {}  # of queries and keys, where they show it


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
        self, call: AttentionCall, masks: Sequence[MaskReading], positions: InputHint | None, earlier: EarlierCall
    ) -> None:
        self.call, self.positions, self.earlier = call, positions, earlier
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


# --- calls behind a cache ---------------------------------------------------------------------------------------


def continued(
    mask: CallMask, bias: Bias | None, turns: Turns, earlier: CallTraits | None
) -> tuple[CallTraits, tuple[Finding, ...]]:
    """Return the traits of a call, and where they contradict those of the calls before its cache."""
    rule = getattr(mask.rule.expression, "inner", mask.rule.expression)
    windows = [one.arguments[0] for one in atoms_named("window", conjuncts(rule) if rule is not None else [])]
    _, _, queries, keys = mask.shape
    is_causal = queries > 1 and not mask.sees_later
    if earlier is None:
        shown = {name: _rotation_of(own, queries) for name, own in turns.items()}
        rotations = {name: rotation for name, rotation in shown.items() if rotation is not None}
        steps = None if bias is None else _steps_of_all(bias, mask)
        return CallTraits(min(windows, default=None), is_causal, steps, rotations), ()
    findings = []
    if earlier.window is not None and earlier.window > 1:
        at = np.arange(keys - queries, keys)[:, None]
        outside = np.any(mask.allowed, axis=(0, 1)) & (np.arange(keys) <= at - earlier.window)
        if count := int(outside.sum()):
            message = f"sees {plural(count, 'key')} outside of the window({earlier.window}) of the calls before"
            findings.append(error("window", message, count, "mask the cache's keys as in the first call"))
    if earlier.is_causal and queries > 1 and mask.words_see_later:
        findings.append(note("leak", "sees later keys, which the calls before it hide", queries))
    if earlier.bias is not None:
        steps = _steps(np.zeros((1, 1, 1, 1), np.float32) if bias is None else bias, mask, -1)
        size = min(steps.shape[1], earlier.bias.shape[1])
        differs = np.abs(steps[:, :size] - earlier.bias[:, :size]) > _tolerance(earlier.bias)
        if differs.any():
            message = "the bias behind a cache is not that of the same distances in the calls before"
            if bias is None:
                message = "no bias is added behind a cache, and the calls before add one"
            findings.append(error("bias", message, int(differs.sum()), "use the last rows of the whole bias"))
    rotations = {}
    for name, rotation in earlier.rotations.items():
        places = rotation.positions(turns[name], queries) if name in turns else None
        if places is None:
            continue
        rotations[name] = rotation._replace(last=int(places[-1]))
        is_next = (places == rotation.last + queries + 1 - len(places) + np.arange(len(places))).all()
        if not is_next and not any(one.code == "positions" for one in findings):
            listed = f"s {places[0]} to {places[-1]}" if len({*places.tolist()}) > 1 else f" {places[0]}"
            message = f"{name} behind a cache are rotated as position{listed}, and the cache ends at {rotation.last}"
            findings.append(error("positions", message, queries, "continue positions after the cache"))
    is_causal |= earlier.is_causal
    return CallTraits(min(windows, default=earlier.window), is_causal, earlier.bias, rotations), tuple(findings)


def _steps_of_all(bias: Bias, mask: CallMask) -> Float[np.ndarray, "H D"] | None:
    """Return the steps of a bias that depends on distances alone, by the last two queries; None of another."""
    if mask.shape[2] < 2:
        return None
    steps, before = (_steps(bias, mask, query) for query in (-1, -2))
    tolerance, size = _tolerance(steps), before.shape[1]
    both = np.isfinite(steps[:, :size]) & np.isfinite(before)
    is_alike = (np.abs(steps[:, :size] - before)[both] <= tolerance / 10).all()
    return steps if is_alike and tolerance > 0 and both.sum() > 1 else None


def _steps(bias: Bias, mask: CallMask, query: int) -> Float[np.ndarray, "H D"]:
    """Return how much the bias of a query rises from each distance to the next; NaN next to a key that is hidden."""
    _, heads, _, keys = mask.shape
    own, seen = (
        np.broadcast_to(one[0, :, query if one.shape[2] > 1 else 0], (heads, keys)) for one in (bias, mask.allowed)
    )
    row = np.where(seen, own, np.nan).astype(np.float64)[:, : keys + query + 1]
    return np.diff(row[:, ::-1], axis=1)


def _tolerance(steps: Float[np.ndarray, "H D"]) -> float:
    return _ROUNDING * float(np.abs(steps[np.isfinite(steps)]).max(initial=0))


# --- rotary positions ----------------------------------------------------------------------------------------


def turns_of(call: AttentionCall) -> dict[str, Complex[np.ndarray, "R P"]]:
    """Return how much the last queries and the keys at their places turn, where projections show it.

    Of half precision too few digits are left.
    """
    turns_by_name: dict[str, Complex[np.ndarray, "R P"]] = {}
    queries, keys = call.shape[2:]
    if call.q is None or call.k is None or call.dtype not in ("float32", "float64") or queries > keys:
        return turns_by_name
    rows = min(queries, _ROWS)
    for row in {0, len(call.q) - 1}:  # of which one may be padded
        before = [to_numpy(each[-rows:]) for one in call.projections for each in _by_position(one, row, queries)]
        for name, after in (("queries", call.q), ("keys", call.k)):
            own = to_numpy(after[min(row, len(after) - 1), :, -rows:])
            turns = (_turns_of_heads(own, one) for one in before)
            if (first := next((each for each in turns if each is not None), None)) is not None:
                turns_by_name[f"{name} of batch row {row}" if row else name] = first
    return turns_by_name


def _rotation_of(turns: Complex[np.ndarray, "R P"], queries: int) -> Rotation | None:
    """Return the rotary embedding that the last rows of a first call show; None where they show none."""
    if len(turns) < 2:
        return None
    rotation = Rotation(np.angle(turns[-1] * turns[-2].conj()), -1)
    last = rotation.positions(turns[-1:], queries)
    if last is None or (np.abs(rotation.frequencies) < _ALIKE).all():
        return None
    position = int(last[0])  # many positions on, the frequencies are known better
    rest = np.angle(turns[-1] * np.exp(-1j * position * rotation.frequencies))
    return Rotation(rotation.frequencies + rest / max(position, 1), position)


def _by_position(projection: Any, row: int, queries: int) -> Iterator[Float[Any, "Q E"]]:
    """Yield a batch row of the output of a module, a vector for each query; heads may come before queries."""
    if row >= len(projection):
        return
    first = projection[row]
    if first.shape[0] == queries:
        yield first.flatten(1)
    if first.dim() == 3 and first.shape[1] == queries:
        yield first.transpose(0, 1).flatten(1)


def _turns_of_heads(
    after: Float[np.ndarray, "H R D"], before: Float[np.ndarray, "R E"]
) -> Complex[np.ndarray, "R P"] | None:
    """Return how much the pairs of all heads turn; None where the first one and the last do not show it."""
    first = _turns(after[0], before)
    if first is None or first.size > 2:
        return first
    # Two lengths are those of some other pairs by chance: another head has to show the same.
    last = None if len(after) == 1 else _turns(after[-1], before)
    is_alike = last is not None and last.shape == first.shape
    return first if is_alike and (np.abs(first - last)[(first != 0) & (last != 0)] < _SAME).all() else None


def _turns(after: Float[np.ndarray, "R D"], before: Float[np.ndarray, "R E"]) -> Complex[np.ndarray, "R P"] | None:
    """Return how much the pairs of one head turn; None where none of the heads before has pairs of these lengths."""
    rows, width = after.shape
    if width % 2 or before.shape[1] % width:
        return None
    heads = before.reshape(rows, -1, width)
    # Numbers that turn together: neighbours, or those of two halves of a head or of the part that turns.
    parts = [part for part in (width, width // 2, width // 4) if part % 2 == 0]
    halves = [(slice(part // 2), slice(part // 2, part)) for part in parts]
    for real, imaginary in [(slice(0, None, 2), slice(1, None, 2)), *halves]:
        one, others = (each[..., real] + 1j * each[..., imaginary] for each in (after, heads))
        if one.size < 2:
            continue  # the length of one pair is that of any other, times a number
        lengths = np.abs(others)
        # What multiplies the queries is the same everywhere.
        scales = np.linalg.norm(one) / np.maximum(np.linalg.norm(lengths, axis=(0, 2)), 1e-12)
        wrong = np.abs(np.abs(one)[:, None] - lengths * scales[:, None]).max(axis=(0, 2))
        head = int(wrong.argmin())
        most = float(np.abs(one).max())
        if wrong[head] <= _ALIKE * most and (np.abs(others[:, head]) > 0).any():
            turned = one * others[:, head].conj()
            return np.where(np.abs(one) > 0.01 * most, turned / np.maximum(np.abs(turned), 1e-30), 0)
    return None
