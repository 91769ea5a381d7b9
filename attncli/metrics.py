"""Numbers that say what a head does, over the query rows that have a key to attend to and are no padding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attncli.trace import HeadTrace, LayerTrace, Trace

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


def head_metrics(trace: Trace, layer: LayerTrace, head: HeadTrace) -> dict[str, float | None]:
    """Return every metric of one head; one that is not defined for this sentence is None, never 0.

    Entropy is in nats and distance in positions; the others are weights between 0 and 1, and `max_score` is a
    score. `previous`, `next`, `self`, `distance`, `duplicate` and `induction` compare positions of one sequence,
    so they are None where queries and keys come from two.
    """
    same_sequence = layer.kind != "cross"
    counts = head.mask.any(axis=-1)
    if same_sequence and layer.num_queries == layer.num_keys:
        counts &= ~layer.mask.padding()[head.queries]
    rows = np.flatnonzero(counts)
    weights = head.weights[rows]  # [Q, K]
    queries = head.queries[rows]
    allowed = head.mask[rows]
    _, key_tokens = trace.sides(layer)
    special = np.array([token.special for token in key_tokens], dtype=bool)
    ids = np.array(key_tokens.ids)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropies = -np.where(weights == 0, 0, weights * np.log(weights)).sum(axis=-1)
    late = queries >= 1
    return {
        "entropy": _mean(entropies),
        "effective_keys": _mean(np.exp(entropies)),
        "distance": _mean(_distances(weights, queries)) if same_sequence else None,
        "self": _diagonal(weights, queries, 0) if same_sequence else None,
        "previous": _diagonal(weights, queries, -1) if same_sequence else None,
        "next": _diagonal(weights, queries, 1) if same_sequence else None,
        "sink": _mean(weights[late, 0]),
        "duplicate": _mass(weights, _earlier_same(ids, queries)) if same_sequence else None,
        "induction": _mass(weights, _after_earlier_same(ids, queries)) if same_sequence else None,
        "special": _mean(weights[:, special].sum(axis=-1)) if special.any() else None,
        "max_weight": _mean(weights.max(axis=-1)),
        "max_score": _number(head.scores[rows][allowed].max()) if allowed.any() else None,
    }


def _number(value: np.floating) -> float | None:
    # By way of its own shortest digits: a float32 has no more to give.
    return None if np.isnan(value) else float(str(value))


def _mean(values: Float[np.ndarray, " Q"]) -> float | None:
    return _number(values.mean()) if values.size else None


def _distances(weights: Float[np.ndarray, "Q K"], queries: Int[np.ndarray, " Q"]) -> Float[np.ndarray, " Q"]:
    return (weights * np.abs(queries[:, None] - np.arange(weights.shape[1])).astype(weights.dtype)).sum(axis=-1)


def _diagonal(weights: Float[np.ndarray, "Q K"], queries: Int[np.ndarray, " Q"], offset: int) -> float | None:
    keys = queries + offset
    inside = (keys >= 0) & (keys < weights.shape[1])
    return _mean(weights[inside, keys[inside]])


def _mass(weights: Float[np.ndarray, "Q K"], wanted: Bool[np.ndarray, "Q K"]) -> float | None:
    """Return the mean weight on the wanted keys, over the rows that have such a key."""
    some = wanted.any(axis=-1)
    return _mean((weights * wanted)[some].sum(axis=-1))


def _earlier_same(ids: Int[np.ndarray, " K"], queries: Int[np.ndarray, " Q"]) -> Bool[np.ndarray, "Q K"]:
    return (ids[queries][:, None] == ids) & (np.arange(len(ids)) < queries[:, None])


def _after_earlier_same(ids: Int[np.ndarray, " K"], queries: Int[np.ndarray, " Q"]) -> Bool[np.ndarray, "Q K"]:
    after = np.zeros((len(queries), len(ids)), bool)
    after[:, 1:] = _earlier_same(ids, queries)[:, :-1]
    return after
