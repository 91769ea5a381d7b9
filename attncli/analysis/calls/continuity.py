"""Contradictions between a call behind a cache and the calls before: its window, its bias, its rotary positions.

Rotary positions show between a projection and the product: a rotation keeps the length of each pair of numbers, and
turns it by a frequency times the position, however it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.files import to_numpy
from attncli.masks.expressions import Atom, conjuncts
from attncli.masks.findings import Finding
from attncli.text import plural

if TYPE_CHECKING:
    from jaxtyping import Complex, Float, Int

    from attncli.analysis.calls.masks import CallMask
    from attncli.recording.call import AttentionCall

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


class CallTraits(NamedTuple):
    """Traits of a call that the calls behind its cache are to share."""

    window: int | None = None  # keys that each query sees at most
    is_causal: bool = False  # whether several queries saw no later key
    # By how much a bias rises from each distance to the next: softmax is the same for a number added to all keys.
    bias: Float[np.ndarray, "H D"] | None = None
    rotations: Mapping[str, Rotation] = {}  # of queries and keys, where they show it


def traits_of(mask: CallMask, bias: Bias | None, turns: Turns, earlier: CallTraits | None) -> CallTraits:
    """Return the traits of a call."""
    before = earlier or CallTraits()
    expression = getattr(mask.rule.expression, "inner", mask.rule.expression)
    atoms = [] if expression is None else conjuncts(expression)
    windows = [one.arguments[0] for one in atoms if isinstance(one, Atom) and one.name == "window"]
    found: dict[str, Rotation] = {}
    for name, own in turns.items():
        if earlier is None:
            rotation = _rotation_of(own, mask.shape[2])
        else:
            rotation, at = before.rotations.get(name), _positions(own, mask, before.rotations.get(name))
            rotation = None if rotation is None or at is None else rotation._replace(last=int(at[-1]))
        if rotation is not None:
            found[name] = rotation
    return CallTraits(
        window=min(windows, default=before.window),
        is_causal=before.is_causal or (mask.shape[2] > 1 and not mask.sees_later),
        bias=before.bias if earlier is not None or bias is None else _steps_of_all(bias, mask),
        rotations=found,
    )


def contradictions(mask: CallMask, bias: Bias | None, turns: Turns, earlier: CallTraits) -> Iterator[Finding]:
    """Yield contradictions between a call behind a cache and the calls before; see `traits_of`."""
    _, _, queries, keys = mask.shape
    if earlier.window is not None and earlier.window > 1:
        at = np.arange(keys - queries, keys)[:, None]
        outside = np.any(mask.allowed, axis=(0, 1)) & (np.arange(keys) <= at - earlier.window)
        if count := int(outside.sum()):
            message = f"sees {plural(count, 'key')} outside of the window({earlier.window}) of the calls before"
            yield Finding("window", "error", message, count, advice="mask the cache's keys as in the first call")
    if earlier.is_causal and queries > 1 and mask.words_see_later:
        yield Finding("leak", "note", "sees later keys, which the calls before it hide", queries)
    if earlier.bias is not None:
        steps = _steps(np.zeros((1, 1, 1, 1), np.float32) if bias is None else bias, mask, -1)
        size = min(steps.shape[1], earlier.bias.shape[1])
        differs = np.abs(steps[:, :size] - earlier.bias[:, :size]) > _tolerance(earlier.bias)
        if differs.any():
            message = "the bias behind a cache is not that of the same distances in the calls before"
            if bias is None:
                message = "no bias is added behind a cache, and the calls before add one"
            yield Finding("bias", "error", message, int(differs.sum()), advice="use the last rows of the whole bias")
    for name, own in turns.items():
        places = _positions(own, mask, earlier.rotations.get(name))
        if places is None:
            continue
        last = earlier.rotations[name].last
        if (places != last + queries + 1 - len(places) + np.arange(len(places))).any():
            listed = f"s {places[0]} to {places[-1]}" if len({*places.tolist()}) > 1 else f" {places[0]}"
            message = f"{name} behind a cache are rotated as position{listed}, and the last one before as {last}"
            yield Finding("positions", "error", message, queries, advice="continue positions after the cache")
            return


def _positions(
    turns: Complex[np.ndarray, "R P"], mask: CallMask, earlier: Rotation | None
) -> Int[np.ndarray, " R"] | None:
    return None if earlier is None else _positions_of(turns, earlier.frequencies, earlier.last + mask.shape[2])


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
    finite = np.abs(steps[np.isfinite(steps)])
    return _ROUNDING * float(finite.max()) if finite.size else 0.0


# --- rotary positions ----------------------------------------------------------------------------------------


def turns_of(call: AttentionCall) -> dict[str, Complex[np.ndarray, "R P"]]:
    """Return how much the last queries and the keys at their places turn, where projections show it.

    Of half precision too few digits are left.
    """
    turns_by_name: dict[str, Complex[np.ndarray, "R P"]] = {}
    if call.q is None or call.k is None or not call.projections or call.dtype not in ("float32", "float64"):
        return turns_by_name
    if call.shape[2] > call.shape[3]:
        return turns_by_name  # of another sequence
    rows = min(call.shape[2], _ROWS)
    for row in {0, len(call.q) - 1}:  # of which one may be padded
        before = [each for one in call.projections for each in _by_position(one, row, call.shape[2])]
        for name, after in (("queries", call.q), ("keys", call.k)):
            own = to_numpy(after[min(row, len(after) - 1), :, -rows:])
            turns = (_turns_of_heads(own, to_numpy(one[-rows:])) for one in before)
            if (first := next((each for each in turns if each is not None), None)) is not None:
                turns_by_name[f"{name} of batch row {row}" if row else name] = first
    return turns_by_name


def _rotation_of(turns: Complex[np.ndarray, "R P"], queries: int) -> Rotation | None:
    """Return the rotary embedding that the last rows of a first call show; None where they show none."""
    if len(turns) < 2:
        return None
    frequencies = np.angle(turns[-1] * turns[-2].conj())
    if (np.abs(frequencies) < _ALIKE).all():
        return None
    last = _positions_of(turns[-1:], frequencies, queries - 1)
    if last is None:
        return None
    position = int(last[0])  # many positions on, the frequencies are known better
    rest = np.angle(turns[-1] * np.exp(-1j * position * frequencies))
    return Rotation(frequencies + rest / max(position, 1), position)


def _positions_of(
    turns: Complex[np.ndarray, "R P"], frequencies: Float[np.ndarray, " P"], expected: int
) -> Int[np.ndarray, " R"] | None:
    """Return the positions of rows, the last expected at one; None where no whole numbers fit."""
    if turns.shape[1:] != frequencies.shape:
        return None
    predicted = expected + 1 - len(turns) + np.arange(len(turns))
    if (_distances(turns, frequencies, predicted) < _OTHER).all():
        return predicted
    at = np.arange(_MOST_POSITIONS)
    found = np.array([_distances(row, frequencies, at).argmin() for row in turns])
    return found if (_distances(turns, frequencies, found) < _SAME).all() else None


def _distances(
    turns: Complex[np.ndarray, "*N P"], frequencies: Float[np.ndarray, " P"], positions: Int[np.ndarray, " N"]
) -> Float[np.ndarray, " N"]:
    """Return how far turns are from those of positions; pairs too small to show one are 0."""
    distances = np.abs(turns - np.exp(1j * positions[:, None] * frequencies))
    return np.where(turns == 0, 0, distances).max(axis=-1)


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
    for pairs in _pairings(width):
        one, others = (each[..., pairs[0]] + 1j * each[..., pairs[1]] for each in (after, heads))
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


def _pairings(width: int) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yield which numbers of a head turn together: neighbours, or those of two halves, of a part that turns."""
    yield range(0, width, 2), range(1, width, 2)
    for part in (width, width // 2, width // 4):
        if part % 2 == 0 and part:
            yield range(part // 2), range(part // 2, part)
