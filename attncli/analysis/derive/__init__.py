"""Derived traces: from what a source recorded to merged, averaged, multiplied or value-weighted numbers.

A derived trace is a Trace like any other, so every view and every format reads it; each step takes layers and gives
layers, and its numbers are made a block of query rows at a time when they are asked for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from attncli.errors import UsageError
from attncli.trace.selection import Indices
from attncli.trace.trace import Derivation, Mean, Origin

if TYPE_CHECKING:
    from attncli.checkpoints.signatures import Choice
    from attncli.trace.layer import LayerTrace
    from attncli.trace.trace import Trace


def derive(
    trace: Trace,
    *,
    norms: bool = False,
    rollout: bool = False,
    words: bool = False,
    mean: Mean | None = None,
    layer: Choice = None,
) -> Trace:
    """Return a trace of derived numbers; the steps follow each other in the order of the arguments.

        attncli.derive(trace, words=True, mean="heads")

    Without any step it is the trace itself.

    Args:
        trace: as it was recorded; for a rollout, every layer from the first one on.
        norms: ‖weight·value‖ instead of weights.
        rollout: attention multiplied through the layers.
        words: merge word pieces.
        mean: what to average over: `heads`, `layers`, or `all`, which is both.
        layer: the layers whose rollout is wanted; None is the last one that is there.

    Raises:
        UsageError: the steps do not go together, or not with this trace, or it is a derived one.
        NotExposedError: the trace lacks what a step needs.
    """
    trace.check_recorded("derive")
    if mean not in (None, *get_args(Mean)):
        raise UsageError(f"mean {mean!r}: expected heads, layers or all")
    if layer is not None and not rollout:
        raise UsageError("layer applies to rollout=True; it chooses the layers whose rollout is returned")
    chosen = None if layer is None else Indices.of("layer", layer)
    return derived_trace(trace, Derivation(norms, rollout, words, mean, chosen))


def derived_trace(trace: Trace, derivation: Derivation) -> Trace:
    """Return the trace that a derivation makes; see `derive`."""
    if derivation.is_none:
        return trace
    from attncli.analysis.derive import mean, norms, rollout, words

    layers: tuple[LayerTrace, ...] = trace.layers
    queries, keys = trace.query_tokens, trace.key_tokens
    rules = []
    if derivation.norms:
        rules.append(norms.rule_of(layers))
        layers = tuple(map(norms.with_norms, layers))
    if derivation.rollout:
        layers = tuple(sorted(layers, key=lambda layer: layer.layer))
        wanted: tuple[int, ...] = (layers[-1].layer,)
        if derivation.layers is not None:
            wanted = derivation.layers.resolve(trace.source.layers, "the source")
        rules.append(rollout.rule_of(wanted, layers[0].kind))
        layers = rollout.rolled_out(layers, wanted)
    if derivation.words:
        queries, keys, rule = words.sides_of(trace)
        rules.append(rule)
        words_of = {trace.query_tokens: queries, trace.key_tokens: keys}
        layers = tuple(words.with_words(layer, *(words_of[side] for side in trace.sides(layer))) for layer in layers)
    if derivation.mean is not None:
        rules.append(mean.rule_of(layers, derivation.mean))
        layers = mean.averaged(layers, derivation.mean)
    return replace(
        trace,
        query_tokens=queries,
        key_tokens=keys,
        layers=layers,
        origin=Origin(trace, derivation, tuple(rules)),
        grids=() if derivation.words else trace.grids,  # words have other positions
    )
