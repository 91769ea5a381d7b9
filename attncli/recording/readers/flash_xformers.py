"""Operators of flash-attn and xformers: attention whose mask is arguments, over `[B, T, H, D]` or packed sequences.

Both libraries register what they run as operators of torch. Their arguments are known by name from the operator's own
schema. An operator of these libraries that is not read here is named, and nothing is guessed of it.

Sources: flash_attn_interface.py of flash-attn 2.6 to 2.8; cutlass.py, flash.py and flash3.py of xformers 0.0.35.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from attncli.recording.call import Api, AttentionCall, MaskArgument
from attncli.recording.readers.reader import Reader, ThreadContext, is_of_nothing
from attncli.recording.readers.scale_checks import of_fused

# By namespace and name of the operator.
_READ: dict[str, Api] = {
    "flash_attn::_flash_attn_forward": "flash",
    "flash_attn::_flash_attn_varlen_forward": "flash",
    "flashattn::_flash_attn_forward": "flash",
    "flashattn::_flash_attn_varlen_forward": "flash",
    "xformers_flash::flash_fwd": "xformers",
    "xformers_flash3::flash_fwd": "xformers",
    "aten::_efficient_attention_forward": "xformers",
}
# Operators of these are attention, whatever they are called.
_LIBRARIES: dict[str, Api] = {
    "flash_attn": "flash",
    "flashattn": "flash",
    "flash_attn_3": "flash",
    "xformers": "xformers",
    "xformers_flash": "xformers",
    "xformers_flash3": "xformers",
}
_BACKWARD = ("backward", "bwd")
_NAMES = {
    "query": "q", "key": "k", "value": "v", "scale": "softmax_scale", "p": "dropout_p", "is_causal": "causal",
    "window_left": "window_size_left", "window_right": "window_size_right", "seqlen_k": "seqused_k",
    "block_tables": "block_table",
}  # fmt: skip
# What makes of the keys something else than they are, where it is given.
_UNREAD = ("block_table", "leftpad_k", "descale_q", "descale_k", "descale_v")


def api_of(operator: Any) -> Api | None:
    """Return which library an operator of torch is attention of, or None."""
    schema = _schema(operator)
    if schema is None or any(word in schema.name for word in _BACKWARD):
        return None
    return _READ.get(schema.name) or _LIBRARIES.get(schema.name.split("::")[0])


class Fused(Reader):
    """Reads the operators of both libraries, which are not known before they are called."""

    def __init__(self, context: ThreadContext) -> None:
        super().__init__(context)
        self.operators = self._read

    def _read(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if api_of(func) is not None:
            call = _call(self.context, func, args, kwargs, result)
            if call is not None:
                self.context.emit(call)


def _call(
    context: ThreadContext, operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
) -> AttentionCall | None:
    """Return a call of an operator of which `api_of` says that it is attention; None if it is one of nothing."""
    api, schema = api_of(operator), _schema(operator)
    assert api is not None
    named: dict[str, Any] = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | dict(
        kwargs
    )
    given: dict[str, Any] = {_NAMES.get(name, name): value for name, value in named.items()}
    q, k, v = given.get("q"), given.get("k"), given.get("v")
    if q is None or k is None or v is None or is_of_nothing(q, k, v):
        return None
    asked = q, k
    unread = [name for name in _UNREAD if given.get(name) is not None]
    if schema.name not in _READ:
        unread.append(f"its mask, as {schema.name} is not known here")
    result = output[0] if isinstance(output, tuple) else output
    starts = given.get("cu_seqlens_q")
    if starts is not None:
        others = given.get("cu_seqlens_k")
        lengths = starts.long().diff()
        key_lengths = lengths if others is None else others.long().diff()
        q, k, v = _unpacked(q, lengths), _unpacked(k, key_lengths), _unpacked(v, key_lengths)
        result = _unpacked(result, lengths)
    else:
        q, k, v, result = (tensor.transpose(1, 2) for tensor in (q, k, v, result))
        lengths, key_lengths = (torch.full((len(q),), side.shape[2], device=q.device) for side in (q, k))
    if given.get("seqused_k") is not None:
        key_lengths = given["seqused_k"].long()
    batch, heads, queries, width = q.shape
    shape = (batch, heads, queries, k.shape[2])
    scale = given.get("softmax_scale")
    factor = width**-0.5 if scale is None else float(scale)
    return AttentionCall(
        api,
        context.place(),
        shape,
        str(q.dtype).removeprefix("torch."),
        str(q.device),
        q=q,
        k=k,
        v=v,
        masks=() if unread else _masks(given, shape, lengths, key_lengths),
        scale=factor,
        softcap=given.get("softcap") or None,
        dropout=float(given.get("dropout_p") or 0.0),
        is_training=context.is_training(),
        output=result,
        findings=of_fused(context.origins, *asked, factor, heads),
        unsupported=", ".join(unread) or None,
    )


def _schema(operator: Any) -> Any:
    if isinstance(operator, torch._ops.OpOverloadPacket):
        operator = operator.default
    return operator._schema if isinstance(operator, torch._ops.OpOverload) else None


def _masks(
    given: Mapping[str, Any], shape: tuple[int, int, int, int], queries: torch.Tensor, keys: torch.Tensor
) -> tuple[MaskArgument, ...]:
    """Return what the arguments hide.

    Args:
        given: the arguments.
        shape: `(B, H, Q, K)`.
        queries: how many each row has, `[B]`.
        keys: likewise.
    """
    masks = []
    device = queries.device
    if given.get("bias") is not None:
        masks.append(MaskArgument("attn_bias", given["bias"], "additive"))
    # Where a query stands: its last one at the last key, but for xformers' lower triangle, which begins top-left.
    is_top_left = given.get("custom_mask_type") == 1
    past = torch.zeros_like(queries) if is_top_left else keys - queries
    if bool((past == past[0]).all()):
        past = past[:1]  # one plane for all rows
    i = torch.arange(shape[2], device=device)[:, None] + past[:, None, None, None]
    j = torch.arange(shape[3], device=device)
    left, right = given.get("window_size_left", -1), given.get("window_size_right", -1)
    if given.get("window_size"):  # xformers: keys up to the query's own, which counts
        left, right = given["window_size"] - 1, -1
    if given.get("causal") or given.get("custom_mask_type"):
        right = 0
    if right is not None and right >= 0:
        masks.append(MaskArgument("causal" if right == 0 else "window_size", j <= i + right, "attend"))
    if left is not None and left >= 0:
        masks.append(MaskArgument("window_size", j >= i - left, "attend"))
    if bool((keys != shape[3]).any()):
        masks.append(MaskArgument("seqlens", j < keys[:, None, None, None], "attend"))
    if bool((queries != shape[2]).any()):  # rows that only fill up attend to nothing, and are 0
        is_row = torch.arange(shape[2], device=device)[:, None] < queries[:, None, None, None]
        masks.append(MaskArgument("seqlens", is_row, "attend"))
    slopes = given.get("alibi_slopes")
    if slopes is not None:
        slopes = slopes.reshape(-1, slopes.shape[-1], 1, 1)
        masks.append(MaskArgument("alibi_slopes", -slopes * (i - j).abs(), "additive"))
    return tuple(masks)


def _unpacked(packed: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return `[B, H, T, D]` of sequences that stand end to end, `[total, H, D]` or `[1, total, H, D]`."""
    rows = torch.split(packed.reshape(-1, *packed.shape[-2:]), lengths.tolist())
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True).transpose(1, 2)
