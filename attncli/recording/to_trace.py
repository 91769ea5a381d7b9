"""The Traces of a call: copied out of a program's tensors, one for each row of its batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attncli.attention import FORBIDDEN_BELOW
from attncli.files import to_numpy
from attncli.masks.conventions import read_as
from attncli.masks.expressions import Atom, Mask, RuleMask, smallest
from attncli.recording.call import ZERO_WHERE_BLIND, AttentionCall, MaskArgument
from attncli.trace.layer import LayerTrace, Stages, proof_of
from attncli.trace.tokens import Tokens
from attncli.trace.trace import Provenance, Trace

if TYPE_CHECKING:
    import torch
    from jaxtyping import Bool, Float


def traces(call: AttentionCall, rows: Sequence[int] | None = None) -> tuple[Trace, ...]:
    """Return a Trace for each row of the batch; empty if neither q, k and v nor weights are known.

    Weights that the program made itself are copied. Those of a fused function are derived from its queries and keys,
    and its output proves them.

    Args:
        call: while its tensors are alive.
        rows: of the batch, all by default.
    """
    if call.q is None and call.project is not None:
        q, k, v = call.project()
        call = replace(call, q=q, k=k, v=v)
    is_derived = call.weights is None
    if is_derived and (call.q is None or call.k is None or call.v is None or call.scale is None or call.unsupported):
        return ()
    place, (batch, _, queries, keys) = call.place, call.shape
    details = {"place": str(place), "api": call.api}
    source = Provenance("module", model=place.module or None, architecture=place.function, dtype=call.dtype,
                        device=call.device, details=details)  # fmt: skip
    tokens = Tokens.without_text(range(queries)), Tokens.without_text(range(keys))
    return tuple(Trace(source, *tokens, (to_layer(call, row),)) for row in (range(batch) if rows is None else rows))


def to_layer(call: AttentionCall, row: int) -> LayerTrace:
    """Return a row of the batch of a call, while its tensors are alive; it has q, k and v, or weights."""
    _, heads, queries, keys = call.shape
    mask, bias, fill = _mask_and_bias(call, row)
    q, k, v = (None if tensor is None else to_numpy(tensor[row]) for tensor in (call.q, call.k, call.v))
    if q is None or k is None:
        q = k = None
    scores = None if call.scores is None else to_numpy(call.scores[row])
    if scores is not None:
        scores = np.where(mask.rows(list(range(heads)), np.arange(queries)), scores, np.float32(-np.inf))
    layer = LayerTrace(
        0, "self" if queries == keys else "cross", q, k, v, call.scale, mask, tuple(range(heads)), bias=bias, fill=fill,
        softcap=call.softcap, sinks=None if call.sinks is None else _sinks(call.sinks, row, heads, queries),
        recorded_scores=scores, recorded_weights=None if call.weights is None else to_numpy(call.weights[row]),
    )  # fmt: skip
    return _with_proof(_with_blind_rows(layer, call), call, row)


def _mask_and_bias(call: AttentionCall, row: int) -> tuple[Mask, Float[np.ndarray, "#H Q K"] | None, float]:
    """Return the keys that each query of a row may attend to, the bias of its scores, and that of forbidden ones."""
    _, heads, queries, keys = call.shape
    rule = RuleMask(Atom("causal" if call.is_causal else "full"), queries, keys, heads)  # top-left, as the APIs align
    if not call.masks:
        return rule, None, -np.inf
    planes, biases, fills = zip(*(_read(mask, row) for mask in call.masks), strict=True)
    allowed = np.logical_and.reduce(np.broadcast_arrays(*planes, rule.rows([0], np.arange(queries))))
    fill = fills[0] if len(fills) == 1 and not call.is_causal and fills[0] <= FORBIDDEN_BELOW else -np.inf
    mask = smallest(allowed, heads)
    added = [bias for bias in biases if bias is not None]
    if not added:
        return mask, None, fill
    bias = sum(added[1:], start=added[0])
    return mask, np.array(np.broadcast_to(bias, (len(bias), queries, keys))), fill


def _read(
    mask: MaskArgument, row: int
) -> tuple[Bool[np.ndarray, "#H #Q #K"], Float[np.ndarray, "#H #Q #K"] | None, float]:
    """Return what a mask allows in one row of the batch, the numbers that it adds, if any, and the one that forbids."""
    values = mask.values.reshape((1,) * (4 - mask.values.dim()) + tuple(mask.values.shape))
    plane = to_numpy(values[row if len(values) > 1 else 0])
    if mask.convention != "additive":
        return read_as(plane, mask.convention).allowed, None, -np.inf
    plane = plane if plane.dtype.kind == "f" else plane.astype(np.float32)
    reading = read_as(plane, mask.convention)
    finite = np.where(reading.allowed, plane, plane.dtype.type(0))
    fill = reading.fills[0] if len(reading.fills) == 1 else -np.inf
    return reading.allowed, finite if finite.any() else None, fill


def _sinks(
    sinks: torch.Tensor, row: int, heads: int, queries: int
) -> Float[np.ndarray, " H"] | Float[np.ndarray, "H Q"]:
    """Return the logit next to the scores of each head in a row of the batch, or of each query where these differ."""
    plane = to_numpy(sinks[row if len(sinks) > 1 else 0])[..., 0]
    return np.array(np.broadcast_to(*((plane[:, 0], (heads,)) if plane.shape[1] == 1 else (plane, (heads, queries)))))


def _with_blind_rows(layer: LayerTrace, call: AttentionCall) -> LayerTrace:
    """Return a layer with the zeros that fused functions give for queries that see no key, if their fill is -inf."""
    is_fused = call.api in ZERO_WHERE_BLIND and layer.recorded_weights is None and layer.fill == -np.inf
    if not is_fused or not layer.fully_masked(range(layer.num_queries)).any():
        return layer
    stages = Stages(layer, tuple(range(layer.num_heads)), np.arange(layer.num_queries))
    return replace(layer, recorded_weights=np.nan_to_num(stages.weights, nan=0.0))


def _with_proof(layer: LayerTrace, call: AttentionCall, row: int) -> LayerTrace:
    if layer.v is None or call.output is None or call.dropout:
        return layer
    expected = to_numpy(call.output[row])
    if expected.shape != (layer.num_heads, layer.num_queries, layer.v.shape[-1]):
        return layer
    return replace(layer, proof=proof_of(layer, expected, call.output_of))
