"""A live `torch.nn.MultiheadAttention`: what its heads attend to, and what the output projection makes of that."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attncli.errors import InputError, require
from attncli.files import to_numpy
from attncli.trace.layer import LayerTrace, Proof, max_abs_diff
from attncli.trace.trace import Provenance, Trace

if TYPE_CHECKING:
    import torch

    from attncli.recording.call import AttentionCall


def from_multihead_attention(
    module: torch.nn.MultiheadAttention,
    query: torch.Tensor,
    key: torch.Tensor | None = None,
    value: torch.Tensor | None = None,
    attn_mask: torch.Tensor | None = None,
    key_padding_mask: torch.Tensor | None = None,
    row: int | None = None,
) -> Trace:
    """Return what a torch module attends to: per-head Q, K, V, scores and weights.

    The weights equal what the module returns with `average_attn_weights=False`; dropout is left out. The proof
    compares the output after the output projection with the module's own.

    Args:
        module: batch_first or not, with or without `kdim` and `vdim`.
        query: a sequence, `[Q, E]`, or a batch as the module takes it.
        key: likewise, `[K, kdim]`; None is `query`.
        value: likewise, `[K, vdim]`; None is `key`.
        attn_mask: `[Q, K]` or `[B·H, Q, K]`; booleans say True = masked, floats are added to the scores.
        key_padding_mask: `[K]` or `[B, K]`; booleans say True = masked, floats are added.
        row: which sequence of the batch; needed where it holds several.

    Raises:
        LoadError: torch is not installed.
        InputError: the module has bias_k, bias_v or add_zero_attn, a tensor does not fit it, or the batch holds several
            sequences and `row` names none of them.
    """
    require("attncli.from_multihead_attention", "torch")
    import torch

    from attncli.recording.notes import Notes
    from attncli.recording.readers.mha import batch_first
    from attncli.recording.to_trace import traces
    from attncli.recording.watch import watching

    if not isinstance(module, torch.nn.MultiheadAttention):
        raise InputError(f"expected a torch.nn.MultiheadAttention, got {type(module).__name__}")
    if module.bias_k is not None or module.bias_v is not None or module.add_zero_attn:
        raise InputError(
            "this nn.MultiheadAttention has bias_k, bias_v or add_zero_attn, which add a key without a token; make "
            "it with add_bias_kv=False and add_zero_attn=False"
        )
    is_self = key is None or key is query
    key = query if key is None else key
    value = key if value is None else value
    if query.dim() not in (2, 3):
        raise InputError(f"query has shape {list(query.shape)}; expected [positions, features], or a batch of these")
    x = batch_first(query, 0 if module.batch_first else 1)
    sequences = len(x)
    if row is None and sequences > 1:
        raise InputError(f"query holds {sequences} sequences; choose one with row=0 to row={sequences - 1}")
    row = row or 0
    if not 0 <= row < sequences:
        raise InputError(f"row is {row}; query holds {sequences} sequences, counted from 0")
    if key_padding_mask is not None and sequences == 1:
        key_padding_mask = key_padding_mask.reshape((1, -1) if query.dim() == 3 else (-1,))
    seen: list[tuple[AttentionCall, Trace]] = []
    notes = Notes()

    def take(call: AttentionCall) -> None:
        (trace,) = traces(call, [row])
        seen.append((call, trace))

    with torch.no_grad(), watching(take, module, notes):
        try:
            module(query, key, value, key_padding_mask=key_padding_mask, attn_mask=attn_mask)
        except (AssertionError, RuntimeError, TypeError) as error:  # as torch refuses what does not fit
            text = " ".join(str(error).split())
            raise InputError(f"this nn.MultiheadAttention refuses its arguments: {text}") from None
    if notes.fault is not None:
        raise notes.fault
    ((call, trace),) = seen
    weight, bias = module.out_proj.weight, module.out_proj.bias
    layer = replace(
        trace.layers[0],
        kind="self" if is_self else "cross",
        inputs=to_numpy(x[row]),
        out_projection=to_numpy(weight).T,
        out_bias=None if bias is None else to_numpy(bias),
    )
    assert call.output is not None
    if not call.dropout:  # else the module's own output is random
        layer = replace(layer, proof=_proof(layer, to_numpy(call.output[row])))
    source = Provenance("module", architecture=type(module).__name__, dtype=call.dtype, device=call.device)
    return Trace(source, trace.query_tokens, trace.key_tokens, (layer,))


def _proof(layer: LayerTrace, expected: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> Proof:
    """Return how far the projected heads are from the module's own output, `[Q, E]`."""
    projected = layer.projected(range(layer.num_queries))
    assert projected is not None
    size = float(np.nanmax(np.abs(expected), initial=1.0))
    return Proof(max_abs_diff(projected, expected), "the module's own output, after out_proj", magnitude=size)
