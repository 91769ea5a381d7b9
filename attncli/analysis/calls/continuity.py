"""Contradictions between a call behind a cache and the calls before: its window, its bias, its rotary positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.analysis.calls.rotary import Rotation, positions_of, rotation_of
from attncli.masks.expressions import Atom, conjuncts
from attncli.masks.findings import Finding
from attncli.text import plural

if TYPE_CHECKING:
    from jaxtyping import Complex, Float, Int

    from attncli.analysis.calls.masks import CallMask

    Turns = Mapping[str, Complex[np.ndarray, "R P"]]
    Bias = Float[np.ndarray, "#B #H #Q #K"]

_ROUNDING = 0.02  # of the largest step of a bias: bfloat16 keeps two digits


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
            rotation = rotation_of(own, mask.shape[2])
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
    return None if earlier is None else positions_of(turns, earlier.frequencies, earlier.last + mask.shape[2])


def _steps_of_all(bias: Bias, mask: CallMask) -> Float[np.ndarray, "H D"] | None:
    """Return the steps of a bias that is one of distances: that of the last two queries; None where it is none."""
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
