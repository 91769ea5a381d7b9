"""`torch.nn.functional.scaled_dot_product_attention`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from attncli.recording.call import MaskArgument
from attncli.recording.readers.reader import ThreadContext, emit, is_of_nothing, longest, own_tokens, padded


def read(
    context: ThreadContext, _: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> None:
    """Read a call of the function."""
    _read(context, result, *args, **kwargs)


def _read(
    context: ThreadContext,
    output: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> None:
    """Read a call; the parameters after `output` are those of the function."""
    if is_of_nothing(query, key, value):
        return
    if output.is_nested:  # `[B, H, T, D]` where each sequence has its own T
        parts: dict[str, Any] = {
            "project": lambda: (padded(query), padded(key), padded(value)),
            "masks": (own_tokens(key),) if key.is_nested else (),
            "shape": (query.size(0), query.size(1), longest(query), longest(key)),
        }
    else:
        folded = context.origins.factor(query).heads
        parts = _dense(output, query, key, value, attn_mask, enable_gqa, context.module(), folded)
    factor = 1 / math.sqrt(query.size(-1)) if scale is None else float(scale)
    emit(context, "sdpa", query, key, factor, is_causal=is_causal, dropout=dropout_p, **parts)


def _dense(
    output: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    enable_gqa: bool,
    module: torch.nn.Module | None,
    folded: int,
) -> dict[str, Any]:
    """Return what a call with plain tensors consists of; so many heads may be folded into its batch."""
    axes = max(query.ndim, key.ndim, value.ndim)
    has_heads = axes > 3 or enable_gqa  # three axes without are a batch
    batches = {_with_heads(each, axes, has_heads).shape[:-3] for each in (query, key, value)}
    # It takes longer than all else here.
    batch = batches.pop() if len(batches) == 1 else torch.broadcast_shapes(*batches)  # type: ignore[no-untyped-call]

    def four(tensor: torch.Tensor) -> torch.Tensor:
        """Return `[B, H, T, D]`; what is the same for all of the batch keeps an axis of 1."""
        tensor = _with_heads(tensor, axes, has_heads)
        own = tensor.shape[:-3]
        if len(own) == 1 and own[0] > 1 == tensor.shape[1] and folded > 1:
            return tensor.reshape(-1, folded, *tensor.shape[2:])
        if len(own) == 1:
            return tensor
        if all(size == 1 for size in own):
            return tensor.reshape(1, *tensor.shape[-3:])
        return tensor.expand(*batch, *tensor.shape[-3:]).flatten(0, -4)

    q, k, v, result = map(four, (query, key, value, output))
    packed = _packed_heads(module, q, k)
    q, result = _unpacked(q, packed), _unpacked(result, packed)
    parts: dict[str, Any] = {"q": q, "k": k, "v": v, "shape": (*q.shape[:3], k.shape[2]), "output": result}
    if type(mask) not in (torch.Tensor, torch.nn.Parameter, type(None)):
        parts["unsupported"] = f"a mask that is a {type(mask).__name__}"
    elif mask is not None:
        convention = "attend" if mask.dtype == torch.bool else "additive"
        parts["masks"] = (MaskArgument("attn_mask", _unpacked(four(mask), packed), convention, mask),)  # type: ignore[arg-type]
    return parts


def _packed_heads(module: torch.nn.Module | None, q: torch.Tensor, k: torch.Tensor) -> int:
    """Return how many heads of one query stand where queries do, as transformers hands grouped heads over; 1 is none.

    Where the heads of a model share keys, it makes `[B, Hkv, H / Hkv, D]` of the one query `[B, H, 1, D]` of a step of
    generation (`pack_gqa` in transformers' sdpa_attention.py): its heads are rows, and none of them is a position.
    """
    groups = getattr(module, "num_key_value_groups", 1)
    heads = getattr(getattr(module, "config", None), "num_attention_heads", None)
    is_packed = q.shape[1] == k.shape[1] and q.shape[2] == groups and q.shape[1] * groups == heads
    return groups if is_packed else 1


def _unpacked(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Return `[B, Hkv, G, D]` as `[B, Hkv·G, 1, D]`; what is the same for all heads stays as it is."""
    return tensor if heads == 1 or tensor.shape[2] == 1 else tensor.flatten(1, 2).unsqueeze(2)


def _with_heads(tensor: torch.Tensor, axes: int, has_heads: bool) -> torch.Tensor:
    """Return a view with the axes `… H T D`, or of a mask `… H Q K`, aligned on the right with others of so many."""
    tensor = tensor[(None,) * (axes - tensor.ndim)]
    return tensor if has_heads else tensor.unsqueeze(-3)
