"""Numbers that say what a head does, over the query rows that have a key to attend to and are no padding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attncli.layer import HeadTrace, LayerTrace
from attncli.trace import Trace

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

NAMES = (
    "entropy", "effective_keys", "distance", "self", "previous", "next", "sink", "duplicate", "induction", "special",
    "max_weight", "max_score",
)  # fmt: skip


def head_metrics(trace: Trace, layer: LayerTrace, head: HeadTrace) -> dict[str, float | None]:
    """Return every metric of one head; one that is not defined for this sentence is None, never 0.

    Entropy is in nats and distance in positions; the others are weights between 0 and 1, and `max_score` is a
    score. `previous`, `next`, `self`, `distance`, `duplicate` and `induction` compare positions of one sequence,
    so they are None where queries and keys come from two.
    """
    _, key_tokens = trace.sides(layer)
    ids, special = np.array(key_tokens.ids), np.array([token.special for token in key_tokens], dtype=bool)
    parts = [_of_rows(layer, block, ids, special) for block in head.blocks()]
    numbers = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    numbers["effective_keys"] = np.exp(numbers["entropy"])
    max_scores = numbers.pop("max_score", np.empty(0, np.float32))
    measured = {name: _mean(numbers[name]) if name in numbers else None for name in NAMES}
    return {**measured, "max_score": _number(max_scores.max()) if max_scores.size else None}


def _of_rows(
    layer: LayerTrace, block: HeadTrace, ids: Int[np.ndarray, " K"], special: Bool[np.ndarray, " K"]
) -> dict[str, Float[np.ndarray, " _"]]:
    """Return the numbers of the query rows that count, without those that such a row or sentence does not have."""
    same_sequence = layer.kind != "cross"
    counts = block.mask.any(axis=-1)
    if same_sequence and layer.num_queries == layer.num_keys:
        counts &= ~layer.mask.padding()[block.queries]
    rows = np.flatnonzero(counts)
    weights, queries = block.weights, block.queries
    if len(rows) < len(queries):
        weights, queries = weights[rows], queries[rows]
    with np.errstate(divide="ignore", invalid="ignore"):
        entropies = -np.where(weights == 0, 0, weights * np.log(weights)).sum(axis=-1)
    numbers = {
        "entropy": entropies,
        "sink": weights[queries >= 1, 0],
        "max_weight": weights.max(axis=-1),
    }
    if "scores" not in layer.missing:
        numbers["max_score"] = np.where(block.mask, block.scores, -np.inf)[rows].max(axis=-1)
    if special.any():
        numbers["special"] = weights[:, special].sum(axis=-1)
    if same_sequence:
        numbers |= {
            "distance": _distances(weights, queries),
            "self": _diagonal(weights, queries, 0),
            "previous": _diagonal(weights, queries, -1),
            "next": _diagonal(weights, queries, 1),
            "duplicate": _mass(weights, _earlier_same(ids, queries)),
            "induction": _mass(weights, _after_earlier_same(ids, queries)),
        }
    return numbers


def _number(value: np.floating) -> float | None:
    # By way of its own shortest digits: a float32 has no more to give.
    return None if np.isnan(value) else float(str(value))


def _mean(values: Float[np.ndarray, " Q"]) -> float | None:
    return _number(values.mean()) if values.size else None


def _distances(weights: Float[np.ndarray, "Q K"], queries: Int[np.ndarray, " Q"]) -> Float[np.ndarray, " Q"]:
    positions = np.arange(weights.shape[1], dtype=weights.dtype)  # exact up to 2^24, and faster than integers
    return (weights * np.abs(queries[:, None].astype(weights.dtype) - positions)).sum(axis=-1)


def _diagonal(
    weights: Float[np.ndarray, "Q K"], queries: Int[np.ndarray, " Q"], offset: int
) -> Float[np.ndarray, " _"]:
    """Return each row's weight on the key `offset` places from its query, of the rows that have such a key."""
    keys = queries + offset
    inside = (keys >= 0) & (keys < weights.shape[1])
    return weights[inside, keys[inside]]


def _mass(weights: Float[np.ndarray, "Q K"], wanted: Bool[np.ndarray, "Q K"]) -> Float[np.ndarray, " _"]:
    """Return each row's weight on the wanted keys, of the rows that have such a key."""
    some = wanted.any(axis=-1)
    return (weights * wanted)[some].sum(axis=-1)


def _earlier_same(ids: Int[np.ndarray, " K"], queries: Int[np.ndarray, " Q"]) -> Bool[np.ndarray, "Q K"]:
    return (ids[queries][:, None] == ids) & (np.arange(len(ids)) < queries[:, None])


def _after_earlier_same(ids: Int[np.ndarray, " K"], queries: Int[np.ndarray, " Q"]) -> Bool[np.ndarray, "Q K"]:
    after = np.zeros((len(queries), len(ids)), bool)
    after[:, 1:] = _earlier_same(ids, queries)[:, :-1]
    return after
