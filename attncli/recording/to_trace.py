"""The Traces of a call: what a program computed, one for each row of its batch, copied out of its tensors."""

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
from attncli.trace.layer import LayerTrace, Proof, Stages, max_abs_diff, stages_of
from attncli.trace.tokens import Token, Tokens
from attncli.trace.trace import Provenance, Trace

if TYPE_CHECKING:
    import torch
    from jaxtyping import Bool, Float


def traces(call: AttentionCall, rows: Sequence[int] | None = None) -> tuple[Trace, ...]:
    """Return what was computed, a Trace for each row of the batch; empty if neither q, k and v nor weights are known.

    Weights that the program made itself are taken as they are. Those of a fused function are derived from its queries
    and keys, and its output proves them.

    Args:
        call: while its tensors are alive.
        rows: which rows of the batch, all by default.
    """
    if call.q is None and call.project is not None:
        q, k, v = call.project()
        call = replace(call, q=q, k=k, v=v)
    if call.weights is None and (call.q is None or call.k is None or call.v is None or call.scale is None):
        return ()
    if call.unsupported is not None and call.weights is None:
        return ()
    _, _, queries, keys = call.shape
    place = call.place
    source = Provenance(
        "module",
        model=place.module or None,
        architecture=place.function,
        dtype=call.dtype,
        device=call.device,
        details={"place": str(place), "api": call.api},
    )
    tokens = positions(queries), positions(keys)
    return tuple(
        Trace(source, *tokens, (to_layer(call, row),)) for row in (range(call.shape[0]) if rows is None else rows)
    )


def positions(length: int) -> Tokens:
    """Return tokens of which nothing is known but their places."""
    return Tokens(Token(index, index, str(index), None, None) for index in range(length))


def to_layer(call: AttentionCall, row: int) -> LayerTrace:
    """Return what a row of the batch of a call computed.

    Args:
        call: while its tensors are alive; with q, k and v, or with weights.
        row: of the batch.
    """
    _, heads, queries, keys = call.shape
    mask, bias, fill = _mask_and_bias(call, row)
    q, k, v = (None if tensor is None else to_numpy(tensor[row]) for tensor in (call.q, call.k, call.v))
    if q is None or k is None:
        q = k = None
    layer = LayerTrace(
        layer=0,
        kind="self" if queries == keys else "cross",
        q=q,
        k=k,
        v=v,
        scale=call.scale,
        mask=mask,
        heads=tuple(range(heads)),
        bias=bias,
        softcap=call.softcap,
        sinks=None if call.sinks is None else _sinks(call.sinks, row, heads, queries),
        fill=fill,
        recorded_scores=_recorded(call.scores, row, call.shape, mask),
        recorded_weights=_recorded(call.weights, row, call.shape, None),
    )
    return _with_proof(_with_blind_rows(layer, call), call, row)


def _mask_and_bias(call: AttentionCall, row: int) -> tuple[Mask, Float[np.ndarray, "#H Q K"] | None, float]:
    """Return which key each query of a row may attend to, what is added to its scores, and to forbidden ones."""
    _, heads, queries, keys = call.shape
    fill = -np.inf
    causal = RuleMask(Atom("causal"), queries, keys, heads)  # top-left, as the APIs align their own
    if not call.masks:
        return (causal if call.is_causal else RuleMask(Atom("full"), queries, keys, heads)), None, fill
    read = [_read(mask, row) for mask in call.masks]
    allowed = read[0][0]
    for more, _, _ in read[1:]:
        allowed = allowed & more
    if call.is_causal:
        allowed = allowed & causal.rows([0], np.arange(queries))
    biases = [bias for _, bias, _ in read if bias is not None]
    fills = [fill for _, _, fill in read if fill is not None]
    if fills and len(call.masks) == 1 and not call.is_causal:
        fill = fills[0] if fills[0] <= FORBIDDEN_BELOW else fill
    allowed = np.broadcast_to(allowed, (len(allowed), queries, keys))
    mask = smallest(np.array(allowed[:1] if (allowed == allowed[:1]).all() else allowed), heads)
    if not biases:
        return mask, None, fill
    bias = sum(biases[1:], start=biases[0])
    return mask, np.array(np.broadcast_to(bias, (len(bias), queries, keys))), fill


def _read(
    mask: MaskArgument, row: int
) -> tuple[Bool[np.ndarray, "#H #Q #K"], Float[np.ndarray, "#H #Q #K"] | None, float | None]:
    """Return what a mask allows in one row of the batch, the numbers that it adds, and the one that it forbids with.

    None is that it adds nothing, and that it forbids nothing, with −inf, or with several numbers.
    """
    values = mask.values.reshape((1,) * (4 - mask.values.dim()) + tuple(mask.values.shape))
    plane = to_numpy(values[row if len(values) > 1 else 0])
    plane = plane.astype(np.float32) if mask.convention == "additive" and plane.dtype.kind != "f" else plane
    reading = read_as(plane, mask.convention)
    if mask.convention != "additive":
        return reading.allowed, None, None
    finite = np.where(reading.allowed, plane, plane.dtype.type(0))
    is_single = len(reading.fills) == 1 and np.isfinite(reading.fills[0])
    return reading.allowed, finite if finite.any() else None, reading.fills[0] if is_single else None


def _sinks(
    sinks: torch.Tensor, row: int, heads: int, queries: int
) -> Float[np.ndarray, " H"] | Float[np.ndarray, "H Q"]:
    """Return the logit beside the scores of each head in a row of the batch, or of each query where these differ."""
    plane = to_numpy(sinks[row if len(sinks) > 1 else 0])[..., 0]
    if plane.shape[1] == 1:
        return np.array(np.broadcast_to(plane[:, 0], (heads,)))
    return np.array(np.broadcast_to(plane, (heads, queries)))


def _recorded(
    values: torch.Tensor | None, row: int, shape: tuple[int, int, int, int], mask: Mask | None
) -> Float[np.ndarray, "H Q K"] | None:
    """Return what the program made itself of one row; scores are −inf where `mask` forbids."""
    if values is None:
        return None
    _, heads, queries, _ = shape
    plane = to_numpy(values[row])
    if mask is None:
        return plane
    allowed = mask.rows(list(range(heads)), np.arange(queries))
    return np.where(allowed, plane, np.float32(-np.inf))


def _with_blind_rows(layer: LayerTrace, call: AttentionCall) -> LayerTrace:
    """Return a layer with the zeros that fused functions give for queries that see no key, if their fill is −inf."""
    is_fused = call.api in ZERO_WHERE_BLIND and layer.recorded_weights is None and layer.fill == -np.inf
    if not is_fused or not layer.fully_masked(range(layer.num_queries)).any():
        return layer
    stages = Stages(layer, tuple(range(layer.num_heads)), np.arange(layer.num_queries))
    return replace(layer, recorded_weights=np.nan_to_num(stages.weights, nan=0.0))


def _with_proof(layer: LayerTrace, call: AttentionCall, row: int) -> LayerTrace:
    """Return a layer with how far weights·V is from what the program's call returned."""
    if layer.v is None or call.output is None or call.dropout:
        return layer
    expected = to_numpy(call.output[row])
    if expected.shape != (layer.num_heads, layer.num_queries, layer.v.shape[-1]):
        return layer
    made = stages_of(layer, range(layer.num_heads), np.arange(layer.num_queries))
    errors = [max_abs_diff(each.output, expected[list(each.heads)][:, each.queries]) for each in made]
    worst = float(np.max(errors, initial=0.0))  # NaN, if one of them is
    largest = max(float(np.nanmax(np.abs(layer.v), initial=1.0)), 1.0)
    return replace(layer, proof=Proof(worst, call.output_of, magnitude=largest))
