"""`torch.nn.functional.scaled_dot_product_attention`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attncli.masks.conventions import Convention
from attncli.recording.call import MaskArgument
from attncli.recording.readers.reader import ThreadContext, emit, is_of_nothing, longest, own_tokens, padded

_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def read(
    context: ThreadContext, _: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> None:
    """Read a call of the function."""
    options: dict[str, Any] = dict(zip(_PARAMETERS, args, strict=False)) | kwargs
    query, key, value = (options[name] for name in _PARAMETERS[:3])
    if is_of_nothing(query, key, value):
        return
    if output.is_nested:  # `[B, H, T, D]` where each sequence has its own T
        parts: dict[str, Any] = {
            "project": lambda: (padded(query), padded(key), padded(value)),
            "masks": (own_tokens(key),) if key.is_nested else (),
            "shape": (query.size(0), query.size(1), longest(query), longest(key)),
        }
    else:
        has_gqa = options.get("enable_gqa", False)
        parts = _dense(context, output, (query, key, value), options.get("attn_mask"), has_gqa)
    scale = 1 / math.sqrt(query.size(-1)) if options.get("scale") is None else float(options["scale"])
    is_causal, dropout = options.get("is_causal", False), options.get("dropout_p", 0.0)
    emit(context, "sdpa", query, key, scale, is_causal=is_causal, dropout=dropout, **parts)


def _dense(
    context: ThreadContext, output: Tensor, inputs: tuple[Tensor, Tensor, Tensor], mask: Tensor | None, enable_gqa: bool
) -> dict[str, Any]:
    """Return the parts of a call with plain tensors; heads may be folded into its batch."""
    axes, folded = max(each.ndim for each in inputs), context.origins.factor(inputs[0]).heads
    has_heads = axes > 3 or enable_gqa  # three axes without are a batch

    def with_heads(tensor: Tensor) -> Tensor:
        tensor = tensor[(None,) * (axes - tensor.ndim)]
        return tensor if has_heads else tensor.unsqueeze(-3)

    batches = {with_heads(each).shape[:-3] for each in inputs}
    # It takes longer than all else here.
    batch = batches.pop() if len(batches) == 1 else torch.broadcast_shapes(*batches)  # type: ignore[no-untyped-call]

    def four(tensor: Tensor) -> Tensor:
        """Return `[B, H, T, D]`; what is the same for all of the batch keeps an axis of 1."""
        tensor = with_heads(tensor)
        outer = tensor.shape[:-3]
        if len(outer) == 1:
            is_folded = outer[0] > 1 == tensor.shape[1] and folded > 1
            return tensor.reshape(-1, folded, *tensor.shape[2:]) if is_folded else tensor
        if all(size == 1 for size in outer):
            return tensor.reshape(1, *tensor.shape[-3:])
        return tensor.expand(*batch, *tensor.shape[-3:]).flatten(0, -4)

    q, k, v = map(four, inputs)
    # Where heads share keys, transformers makes `[B, Hkv, H / Hkv, D]` of the one query `[B, H, 1, D]` of a step of
    # generation (`pack_gqa` in sdpa_attention.py): its heads are rows, and none of them is a position.
    module = context.running[-1].module if context.running else None
    groups = getattr(module, "num_key_value_groups", 1)
    heads = getattr(getattr(module, "config", None), "num_attention_heads", None)
    is_packed = groups > 1 and q.shape[1] == k.shape[1] and q.shape[2] == groups and q.shape[1] * groups == heads

    def unpacked(tensor: Tensor) -> Tensor:
        return tensor.flatten(1, 2).unsqueeze(2) if is_packed and tensor.shape[2] > 1 else tensor

    q = unpacked(q)
    parts = {"q": q, "k": k, "v": v, "shape": (*q.shape[:3], k.shape[2]), "output": unpacked(four(output))}
    if type(mask) not in (Tensor, torch.nn.Parameter, type(None)):
        return {**parts, "unsupported": f"a mask that is a {type(mask).__name__}"}
    if mask is not None:
        convention: Convention = "attend" if mask.dtype == torch.bool else "additive"
        parts["masks"] = (MaskArgument("attn_mask", unpacked(four(mask)), convention, mask),)
    return parts
