"""A live `torch.nn.MultiheadAttention`: its packed parameters, head by head."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors import InputError, require
from attncli.files import to_numpy
from attncli.masks.expressions import ArrayMask
from attncli.trace.layer import LayerTrace, Proof
from attncli.trace.tokens import Token, Tokens
from attncli.trace.trace import Provenance, Trace

if TYPE_CHECKING:
    import torch
    from jaxtyping import Float


def from_multihead_attention(
    module: torch.nn.MultiheadAttention,
    query: torch.Tensor,
    key: torch.Tensor | None = None,
    value: torch.Tensor | None = None,
    attn_mask: torch.Tensor | None = None,
    key_padding_mask: torch.Tensor | None = None,
) -> Trace:
    """Return what a torch module attends to: per-head Q, K, V, scores and weights.

    The weights equal what the module returns with `average_attn_weights=False`; dropout is left out. The proof
    compares the output after the output projection with the module's own.

    Args:
        module: batch_first or not, with or without `kdim` and `vdim`.
        query: one sequence, `[Q, E]`, or a batch of one as the module takes it.
        key: likewise, `[K, kdim]`; None is `query`.
        value: likewise, `[K, vdim]`; None is `key`.
        attn_mask: `[Q, K]` or `[H, Q, K]`; booleans say True = masked, floats are added to the scores.
        key_padding_mask: `[K]` or `[1, K]`; booleans say True = masked, floats are added.

    Raises:
        LoadError: torch is not installed.
        InputError: the module has bias_k, bias_v or add_zero_attn, or the batch holds several sequences.
    """
    require("attncli.from_multihead_attention", "torch")
    import torch

    if not isinstance(module, torch.nn.MultiheadAttention):
        raise InputError(f"expected a torch.nn.MultiheadAttention, got {type(module).__name__}")
    if module.bias_k is not None or module.bias_v is not None or module.add_zero_attn:
        raise InputError(
            "this nn.MultiheadAttention has bias_k, bias_v or add_zero_attn, which attend to a key that is no "
            "token; make it with add_bias_kv=False and add_zero_attn=False"
        )
    key = query if key is None else key
    value = key if value is None else value
    with torch.no_grad():
        x = [_one_sequence(module, tensor, name) for tensor, name in ((query, "query"), (key, "key"), (value, "value"))]
        q, k, v = (
            _heads(torch.nn.functional.linear(tensor, weight, bias), module.num_heads)
            for tensor, (weight, bias) in zip(x, _projections(module), strict=True)
        )
        cells = (module.num_heads, q.shape[1], k.shape[1])
        allowed, bias = _masks(attn_mask, key_padding_mask, cells)
        layer = LayerTrace(
            layer=0,
            kind="self" if key is query else "cross",
            q=q,
            k=k,
            v=v,
            scale=q.shape[-1] ** -0.5,
            mask=ArrayMask(allowed),
            heads=tuple(range(module.num_heads)),
            bias=bias,
            inputs=to_numpy(x[0]),
            out_projection=to_numpy(module.out_proj.weight).T,
            out_bias=None if module.out_proj.bias is None else to_numpy(module.out_proj.bias),
        )
        proof = _proof(module, layer, x, attn_mask, key_padding_mask)
    parameter = next(module.parameters())
    source = Provenance(
        "module",
        architecture=type(module).__name__,
        dtype=str(parameter.dtype).removeprefix("torch."),
        device=str(parameter.device),
    )
    query_tokens, key_tokens = _positions(q.shape[1]), _positions(k.shape[1])
    return Trace(source, query_tokens, key_tokens, (replace(layer, proof=proof),))


def _one_sequence(module: torch.nn.MultiheadAttention, tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Return a sequence as `[positions, features]`, in the module's own dtype."""
    width = {"query": module.embed_dim, "key": module.kdim, "value": module.vdim}[name]
    dtype = module.out_proj.weight.dtype
    if tensor.shape[-1] != width or tensor.dtype != dtype:
        raise InputError(f"{name} is {tensor.dtype} of width {tensor.shape[-1]}; expected {dtype} of width {width}")
    if tensor.dim() == 2:
        return tensor
    batch_axis = 0 if module.batch_first else 1
    if tensor.dim() != 3 or tensor.shape[batch_axis] != 1:
        raise InputError(
            f"{name} has shape {list(tensor.shape)}; expected one sequence, [positions, features] or a batch of one "
            f"with the batch in axis {batch_axis}"
        )
    return tensor.squeeze(batch_axis)


def _projections(module: torch.nn.MultiheadAttention) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    """Return weight and bias of W_q, W_k, W_v, which the module packs into one tensor where their widths agree."""
    if module.in_proj_weight is not None:
        weights: Any = module.in_proj_weight.chunk(3)
    else:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    biases: Any = (None, None, None) if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    return list(zip(weights, biases, strict=True))


def _heads(projected: torch.Tensor, num_heads: int) -> Float[np.ndarray, "H T D"]:
    length, width = projected.shape
    return to_numpy(projected.view(length, num_heads, width // num_heads).transpose(0, 1))


def _masks(
    attn_mask: torch.Tensor | None, key_padding_mask: torch.Tensor | None, cells: tuple[int, int, int]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None]:
    """Return the allowed cells and the bias, both `[1 or H, Q, K]`, of torch's two kinds of mask."""
    heads, queries, keys = cells
    allowed = np.ones((1, queries, keys), bool)
    bias = None
    shapes = {"attn_mask": ((queries, keys), (heads, queries, keys)), "key_padding_mask": ((keys,), (1, keys))}
    for name, mask in (("attn_mask", attn_mask), ("key_padding_mask", key_padding_mask)):
        if mask is None:
            continue
        if tuple(mask.shape) not in shapes[name]:
            wanted = " or ".join(str(list(shape)) for shape in shapes[name])
            raise InputError(f"{name} has shape {list(mask.shape)}; expected {wanted}")
        if not (given_dtype := str(mask.dtype)).endswith("bool") and not mask.is_floating_point():
            raise InputError(f"{name} is {given_dtype}; expected booleans (True = masked) or floats that are added")
        given = to_numpy(mask).reshape((-1, queries, keys) if name == "attn_mask" else (1, 1, keys))
        if given.dtype == bool:
            allowed = allowed & ~given
        else:
            allowed = allowed & (given != -np.inf)
            finite = np.where(given == -np.inf, 0, given)
            bias = finite if bias is None else bias + finite
    if bias is not None:
        bias = np.array(np.broadcast_to(bias, (len(bias), queries, keys))) if bias.any() else None
    return allowed, bias


def _proof(
    module: torch.nn.MultiheadAttention,
    layer: LayerTrace,
    x: list[torch.Tensor],
    attn_mask: torch.Tensor | None,
    key_padding_mask: torch.Tensor | None,
) -> Proof | None:
    if module.training and module.dropout:
        return None  # the module's own output is random then
    padding = None if key_padding_mask is None else key_padding_mask.reshape(-1)
    query, key, value = x
    output, _ = module(query, key, value, key_padding_mask=padding, attn_mask=attn_mask, need_weights=True)
    projected = layer.projected(range(layer.num_queries))
    assert projected is not None
    expected = to_numpy(output)
    # A query without keys is NaN in both; NaN in one of them alone is an error of no known size.
    error = np.where(np.isnan(projected) & np.isnan(expected), 0, np.abs(projected - expected))
    size = float(np.nanmax(np.abs(expected), initial=1.0))
    return Proof(float(error.max()), "the module's own output, after out_proj", magnitude=size)


def _positions(length: int) -> Tokens:
    return Tokens(Token(index, index, str(index), None, None) for index in range(length))
