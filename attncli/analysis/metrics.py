"""Numbers that say what a head does, over the query rows that have a key to attend to and are no padding.

What is per cell is made for several heads at once and a block of query rows at a time, and only sums are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from attncli.analysis.metric_names import NAMES, Metric
from attncli.trace.layer import HeadTrace, LayerTrace, Stages, stages_of
from attncli.trace.trace import Trace

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

_EVERY = slice(None)


def head_metrics(trace: Trace, layer: LayerTrace, head: HeadTrace) -> dict[str, float | None]:
    """Return every metric of one head; one that is not defined for this sentence is None, never 0.

    `entropy` is in nats, `effective_keys` a number of keys, `distance` in positions and `max_score` a score; the
    others are weights between 0 and 1. `previous`, `next`, `self`, `distance`, `duplicate` and `induction` compare
    positions of one sequence, so they are None where queries and keys come from two. Where other keys stand behind
    those of the sequence they are weights on the sequence's own, and `distance` is None.
    """
    blocks = (block.stages for block in head.blocks())
    (values,) = _measured(trace, layer, (head.head,), blocks, has_scores="scores" not in layer.missing)
    return by_name(NAMES, values)


def by_name(names: Sequence[Metric], values: Float[np.ndarray, " M"]) -> dict[str, float | None]:
    """Return one number a metric as a dictionary; NaN becomes None.

    They come by way of a float32's own shortest digits: it has no more to give.
    """
    digits = [str(value) for value in values.astype(np.float32)]
    return {name: None if text == "nan" else float(text) for name, text in zip(names, digits, strict=True)}


def layer_metrics(
    trace: Trace, layer: LayerTrace, queries: Int[np.ndarray, " Q"] | None = None
) -> Float[np.ndarray, "H M"]:
    """Return every metric, in the order of `NAMES`, of the layer's chosen heads; NaN is one that is not defined.

    They are over all query rows, or over the given ones.
    """
    rows = np.arange(layer.num_queries) if queries is None else queries
    blocks = stages_of(layer, layer.heads, rows)
    return _measured(trace, layer, layer.heads, blocks, has_scores="scores" not in layer.missing)


def uniform_metrics(trace: Trace, layer: LayerTrace, queries: Int[np.ndarray, " Q"]) -> Float[np.ndarray, "#H M"]:
    """Return the metrics of the head that gives every allowed key the same weight, over the given rows.

    It knows nothing but the mask, so that what a head has more than this it does by itself. Where all heads share a
    mask it is one row; `max_score` is NaN, as it has no scores.
    """
    planes = len(layer.mask.rows(list(layer.heads), queries[:1]))
    heads = layer.heads if planes > 1 else layer.heads[:1]
    blocks = (_Uniform(layer, block.heads, block.queries) for block in stages_of(layer, heads, queries))
    return _measured(trace, layer, heads, blocks, has_scores=False)


class _Uniform(Stages):
    """Heads that give every allowed key the same weight."""

    @cached_property
    def weights(self) -> Float[np.ndarray, "H Q K"]:
        """One over the number of allowed keys; NaN in a row that has none."""
        allowed = self.mask.astype(np.float32)
        with np.errstate(invalid="ignore"):
            return allowed / allowed.sum(axis=-1, keepdims=True)


def _measured(
    trace: Trace, layer: LayerTrace, heads: tuple[int, ...], blocks: Iterable[Stages], has_scores: bool
) -> Float[np.ndarray, "H M"]:
    """Return the metrics of some heads, given block by block."""
    query_tokens, key_tokens = trace.sides(layer)
    is_one = layer.kind != "cross" and key_tokens[: len(query_tokens)] == tuple(query_tokens)
    ids, special = np.array(key_tokens.ids), np.array([token.special for token in key_tokens], dtype=bool)
    totals = {name: np.zeros(len(heads)) for name in NAMES}
    counts = {name: np.zeros(len(heads), int) for name in NAMES}
    highest = np.full(len(heads), -np.inf if has_scores else np.nan)
    for block in blocks:
        first = heads.index(block.heads[0])
        some = slice(first, first + len(block.heads))
        counted = counted_rows(block)
        for name, rows, values in _of_rows(block, ids, special, is_one):
            among = counted[:, rows]
            totals[name][some] += (values if among.all() else np.where(among, values, 0)).sum(axis=-1, dtype=float)
            counts[name][some] += among.sum(axis=-1)
        if has_scores:
            scores = np.where(block.mask & counted[..., None], block.scores, -np.inf)
            highest[some] = np.maximum(highest[some], scores.max(axis=(1, 2), initial=-np.inf))
    with np.errstate(invalid="ignore"):  # 0/0 is the NaN of what is not defined
        means = {name: totals[name] / counts[name] for name in NAMES}
    means["max_score"] = np.where(counts["entropy"] > 0, highest, np.nan)
    return np.stack(list(means.values()), axis=1).astype(np.float32)


def counted_rows(block: Stages) -> Bool[np.ndarray, "#H Q"]:
    """Return which query rows count: those that have a key to attend to, hold numbers alone and are no padding."""
    layer = block.layer
    counted = block.mask.any(axis=-1) & ~np.isnan(block.weights).any(axis=-1)
    if layer.kind != "cross" and layer.num_queries == layer.num_keys:
        counted &= ~layer.mask.padding()[block.queries]
    return counted


def _of_rows(
    block: Stages, ids: Int[np.ndarray, " K"], special: Bool[np.ndarray, " K"], is_one: bool
) -> Iterator[tuple[Metric, Bool[np.ndarray, " Q"] | slice, Float[np.ndarray, "H R"]]]:
    """Yield metric by metric the query rows that have it, and its number in each of them.

    Args:
        block: the rows.
        ids: of the keys.
        special: which keys are special tokens.
        is_one: whether the first keys are the queries' own positions.
    """
    weights, queries = block.weights, block.queries
    logarithms = np.log(weights, where=weights > 0, out=np.zeros_like(weights))
    entropies = -np.vecdot(weights, logarithms)
    yield "entropy", _EVERY, entropies
    yield "effective_keys", _EVERY, np.exp(entropies)
    yield "max_weight", _EVERY, weights.max(axis=-1)
    later = queries >= 1
    yield "sink", later, weights[:, later, 0]
    if special.any():
        yield "special", _EVERY, weights @ special.astype(weights.dtype)
    if special[1:].any():
        yield "separator", _EVERY, weights[..., 1:] @ special[1:].astype(weights.dtype)
    if not is_one:
        return
    weights, ids = weights[..., : block.layer.num_queries], ids[: block.layer.num_queries]
    if weights.shape[-1] == block.layer.num_keys:
        positions = np.arange(weights.shape[-1], dtype=weights.dtype)  # exact up to 2^24, and faster than integers
        yield "distance", _EVERY, np.vecdot(weights, np.abs(queries[:, None].astype(weights.dtype) - positions))
    neighbours: dict[Metric, int] = {"self": 0, "previous": -1, "next": 1}
    for name, offset in neighbours.items():
        keys = queries + offset
        inside = (keys >= 0) & (keys < weights.shape[-1])
        yield name, inside, weights[:, inside, keys[inside]]
    earlier = (ids[queries][:, None] == ids) & (np.arange(len(ids)) < queries[:, None])
    repeats = earlier.any(axis=-1)
    if repeats.any():
        earlier, of_repeats = earlier[repeats].astype(weights.dtype), weights[:, repeats]
        yield "duplicate", repeats, np.vecdot(of_repeats, earlier)
        # An earlier position is never the last one, so every one has a position after it.
        yield "induction", repeats, np.vecdot(of_repeats[..., 1:], earlier[:, :-1])
