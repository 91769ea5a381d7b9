"""Operators of flash-attn and xformers: attention whose mask is arguments, over `[B, T, H, D]` or packed sequences.

Both libraries register what they run as operators of torch. Their arguments are known by name from the operator's own
schema. An operator of these libraries that is not read here is named, and nothing is guessed of it.

Sources: flash_attn_interface.py of flash-attn 2.6 to 2.8; cutlass.py, flash.py and flash3.py of xformers 0.0.35.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from attncli.recording.call import MaskArgument
from attncli.recording.readers.reader import ThreadContext, emit, is_of_nothing

# By namespace and name of the operator.
_READ = {
    *(f"{library}::_flash_attn_{kind}forward" for library in ("flash_attn", "flashattn") for kind in ("", "varlen_")),
    "xformers_flash::flash_fwd", "xformers_flash3::flash_fwd", "aten::_efficient_attention_forward",
}  # fmt: skip
# Operators of these are attention, whatever they are called.
_LIBRARIES = ("flash_attn", "flashattn", "flash_attn_3", "xformers", "xformers_flash", "xformers_flash3")
_BACKWARD = ("backward", "bwd")
_NAMES = {
    "query": "q", "key": "k", "value": "v", "scale": "softmax_scale", "p": "dropout_p", "is_causal": "causal",
    "window_left": "window_size_left", "window_right": "window_size_right", "block_tables": "block_table",
}  # fmt: skip
# What makes of the keys something else than they are, where it is given.
_UNREAD = ("block_table", "leftpad_k", "seqused_k", "seqlen_k", "descale_q", "descale_k", "descale_v")


def read(
    context: ThreadContext, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> None:
    """Read a call of an operator, if it is one of these libraries, and not of nothing."""
    operator: Any = func.default if isinstance(func, torch._ops.OpOverloadPacket) else func
    schema = operator._schema
    library = schema.name.split("::")[0]
    is_read = schema.name in _READ
    if not is_read and (library not in _LIBRARIES or any(word in schema.name for word in _BACKWARD)):
        return
    named = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)} | kwargs
    arguments: dict[Any, Any] = {_NAMES.get(name, name): value for name, value in named.items()}
    query, key, value = inputs = [arguments.get(each) for each in "qkv"]
    if query is None or key is None or value is None or is_of_nothing(query, key, value):
        return
    unread = [each for each in _UNREAD if arguments.get(each) is not None]
    unread += [] if is_read else [f"its mask, as {schema.name} is not known here"]
    output = result[0] if isinstance(result, tuple) else result
    starts = arguments.get("cu_seqlens_q")
    if starts is not None:
        others = arguments.get("cu_seqlens_k")
        lengths = starts.long().diff()
        key_lengths = lengths if others is None else others.long().diff()
        sides = zip((*inputs, output), (lengths, key_lengths, key_lengths, lengths), strict=True)
        rows = (each.reshape(-1, *each.shape[-2:]).split(own.tolist()) for each, own in sides)  # `[total, H, D]`
        q, k, v, output = (torch.nn.utils.rnn.pad_sequence(each, batch_first=True).transpose(1, 2) for each in rows)
    else:
        q, k, v, output = (each.transpose(1, 2) for each in (query, key, value, output))
        lengths, key_lengths = (torch.full((len(q),), side.shape[2], device=q.device) for side in (q, k))
    shape = (*q.shape[:3], k.shape[2])
    scale = q.shape[-1] ** -0.5 if arguments.get("softmax_scale") is None else float(arguments["softmax_scale"])
    emit(
        context, "flash" if library.startswith("flash") else "xformers", query, key, scale, shape=shape, q=q, k=k, v=v,
        masks=() if unread else tuple(_masks(arguments, shape, lengths, key_lengths)),
        softcap=arguments.get("softcap") or None,
        dropout=float(arguments.get("dropout_p") or 0.0), output=output, unsupported=", ".join(unread) or None,
    )  # fmt: skip


def _masks(
    arguments: Mapping[str, Any], shape: tuple[int, int, int, int], queries: torch.Tensor, keys: torch.Tensor
) -> Iterator[MaskArgument]:
    """Yield the masks that the arguments of an operator mean, for the lengths `[B]` of queries and keys."""
    if arguments.get("bias") is not None:
        yield MaskArgument("attn_bias", arguments["bias"], "additive")
    # Where a query stands: its last one at the last key, but for xformers' lower triangle, which begins top-left.
    past = torch.zeros_like(queries) if arguments.get("custom_mask_type") == 1 else keys - queries
    if bool((past == past[0]).all()):
        past = past[:1]  # one plane for all rows
    rows, j = (torch.arange(length, device=queries.device) for length in shape[2:])
    i = rows[:, None] + past[:, None, None, None]
    left, right = arguments.get("window_size_left"), arguments.get("window_size_right")
    if arguments.get("window_size"):  # xformers: keys up to the query's own, which counts
        left, right = arguments["window_size"] - 1, None
    if arguments.get("causal") or arguments.get("custom_mask_type"):
        right = 0
    if right is not None and right >= 0:
        yield MaskArgument("causal" if right == 0 else "window_size", j <= i + right, "attend")
    if left is not None and left >= 0:
        yield MaskArgument("window_size", j >= i - left, "attend")
    if bool((keys != shape[3]).any()):
        yield MaskArgument("seqlens", j < keys[:, None, None, None], "attend")
    if bool((queries != shape[2]).any()):  # rows that only fill up attend to nothing, and are 0
        yield MaskArgument("seqlens", rows[:, None] < queries[:, None, None, None], "attend")
    if (slopes := arguments.get("alibi_slopes")) is not None:
        yield MaskArgument("alibi_slopes", -slopes.reshape(-1, shape[1], 1, 1) * (i - j).abs(), "additive")
