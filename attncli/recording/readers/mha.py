"""`torch.nn.MultiheadAttention`, the function that it calls, and the layers of `torch.nn.Transformer` around it.

In evaluation these modules have a fast path, whose last bits differ. It is not taken while a `TorchFunctionMode` is on:
so `watch` switches its own off while such a module runs, and its arguments are read.

Their `is_causal` is a hint that `attn_mask` is causal. Without `key_padding_mask` and `need_weights` it takes the place
of `attn_mask`; otherwise, and in every fast path, it does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Signature, signature
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from attncli.attention import FORBIDDEN_BELOW
from attncli.masks.conventions import Convention
from attncli.masks.findings import Finding
from attncli.recording.call import MaskArgument
from attncli.recording.readers.reader import ThreadContext, emit, is_of_nothing, longest, own_tokens, padded

# Where the program puts functions of its own in the place of torch's, it is not to be called by us.
_nn, _functions = torch._C._nn, torch._C._VariableFunctions

_INPUTS = ("query", "key", "value")
_MASKS = ("attn_mask", "key_padding_mask", "src_mask", "src_key_padding_mask")  # the last two of a layer
_OWN_KEYS = ("bias_k", "bias_v", "add_zero_attn", "static_k", "static_v")  # keys that are no tokens
_FUNCTION = signature(F.multi_head_attention_forward)
_MODULE, _LAYER = signature(nn.MultiheadAttention.forward), signature(nn.TransformerEncoderLayer.forward)
_UNHEEDED = Finding(
    "no-mask", "error", "is_causal=True was ignored: without attn_mask, the fast path of evaluation masks nothing",
    advice="pass nn.Transformer.generate_square_subsequent_mask(T)",
)  # fmt: skip
_CONTRADICTED = "is_causal=True contradicts attn_mask: the fast path applies the mask, and other paths the hint"


def is_fused(module: nn.Module) -> bool:
    """Return whether functions that a module itself calls are not seen, so that it can take its fast path.

    Those of a class with a `forward` of its own are seen, and `super().forward` takes the other path.
    """
    forward = getattr(type(module), "forward", None)
    if forward is nn.MultiheadAttention.forward:
        return True
    if forward is nn.TransformerEncoderLayer.forward:
        block = getattr(type(module), "_sa_block", None)
        return not module.training and block is nn.TransformerEncoderLayer._sa_block
    return forward is nn.TransformerEncoder.forward and not module.training


def read_function(
    context: ThreadContext, _: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> None:
    """Read a call of `F.multi_head_attention_forward`, whose tensors are `[T, B, E]`."""
    options = _named(_FUNCTION, args, kwargs)
    layer = {**options, "in_proj_weight": None if options["use_separate_proj_weight"] else options["in_proj_weight"]}
    parts = {"dropout": options["dropout_p"] if options["training"] else 0.0, "is_training": options["training"]}
    _emit(context, layer, options, 1, result[0], is_causal=_hint_decides(options), **parts)


def read_module(
    context: ThreadContext, module: Any, _: bool, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> None:
    """Read a call of a module."""
    options = _named(_MODULE, (module, *args), kwargs)
    parts: dict[str, Any] = {"dropout": module.dropout if module.training else 0.0, "is_training": module.training}
    mask, is_causal = options["attn_mask"], _hint_decides(options)
    if options["is_causal"] and mask is None:
        is_causal, parts["findings"] = False, (_UNHEEDED,)
    elif is_causal and not module.training and not result[0].requires_grad:  # maybe by the fast path
        later = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).triu(1)
        fill = -torch.inf if mask.is_floating_point() else True
        is_causal = not torch.equal(mask, torch.zeros_like(mask).masked_fill(later, fill))
        parts["unsupported"] = _CONTRADICTED if is_causal else None
    _emit(context, _parameters(module), options, 0 if module.batch_first else 1, result[0], is_causal, **parts)


def read_layer(
    context: ThreadContext, module: Any, has_called: bool, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any
) -> None:
    """Read a layer that took its fast path, which takes every mask for booleans: numbers other than 0 forbid."""
    if has_called:  # out of its fast path the layer calls its parts, and they were read
        return
    named, norm, place = _named(_LAYER, (module, *args), kwargs), module.norm1, context.place()
    added = [name for name in _MASKS if named.get(name) is not None and named[name].is_floating_point()]
    biases = [name for name in added if bool(((named[name] != 0) & (named[name] > FORBIDDEN_BELOW)).any())]

    def normed(x: Tensor) -> Tensor:
        return _functions.layer_norm(padded(x), norm.normalized_shape, norm.weight, norm.bias, norm.eps)

    _emit(
        context, _parameters(module.self_attn), {**named, **dict.fromkeys(_INPUTS, named["src"])}, 0, None,
        prepared=normed if module.norm_first else padded,
        place=place._replace(module=f"{place.module}.self_attn" if place.module else "self_attn"),
        findings=(_UNHEEDED,) if named["is_causal"] and named["src_mask"] is None else (), is_training=module.training,
        unsupported=f"the numbers of {' and '.join(biases)} in the fast path" if biases else None,
    )  # fmt: skip


def _emit(
    context: ThreadContext,
    layer: Mapping[str, Any],
    options: Mapping[str, Any],
    axis: int,
    output: Tensor | None,
    is_causal: bool = False,
    prepared: Callable[[Tensor], Tensor] = padded,
    unsupported: str | None = None,
    **parts: Any,
) -> None:
    query, key, _ = inputs = [batch_first(options[name], axis) for name in _INPUTS]
    if is_of_nothing(*inputs):
        return
    autocast, heads = _autocast(query.device.type), layer["num_heads"]
    own_keys = [name for name in _OWN_KEYS if isinstance(layer[name], Tensor) or layer[name]]
    unread = unsupported or ", ".join(own_keys) or None
    packed, bias = layer["in_proj_weight"], layer["in_proj_bias"]
    weights = [layer[f"{name}_proj_weight"] for name in "qkv"] if packed is None else packed.chunk(3)

    def project() -> tuple[Tensor, Tensor, Tensor]:
        # Not kept: without gradients as here, a cast weight would be kept for the program, too.
        with torch.autocast(query.device.type, autocast, enabled=autocast is not None, cache_enabled=False):
            offsets = (None, None, None) if bias is None else bias.chunk(3)
            projected = (_nn.linear(*each) for each in zip(map(prepared, inputs), weights, offsets, strict=True))
            q, k, v = (each.view(*each.shape[:2], heads, -1).transpose(1, 2) for each in projected)
        return q, k, v

    masks = [own_tokens(key)] if query.is_nested else []
    for name in _MASKS:  # True and -inf forbid
        if (mask := options.get(name)) is not None:
            is_of_keys = name.endswith("key_padding_mask")  # `[K]` or `[B, K]`; others are `[Q, K]` or `[B·H, Q, K]`
            shape = (-1, 1, 1, mask.shape[-1]) if is_of_keys else (-1, heads if mask.dim() > 2 else 1, *mask.shape[-2:])
            convention: Convention = "masked" if mask.dtype == torch.bool else "additive"
            masks.append(MaskArgument(name, mask.view(shape), convention, mask))
    emit(
        context, "mha", query, key, (weights[0].shape[0] // heads) ** -0.5, scale_factors=(),
        shape=(query.size(0), heads, longest(query), longest(key)),
        dtype=str(autocast or query.dtype).removeprefix("torch."),
        project=project if unread is None else None, unsupported=unread, is_causal=is_causal,
        masks=() if is_causal else tuple(masks), ignored_masks=tuple(masks) if is_causal else (),
        output=None if output is None else batch_first(output, axis), **parts,
    )  # fmt: skip


def _named(parameters: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = parameters.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _parameters(module: nn.MultiheadAttention) -> dict[str, Any]:
    return {name: getattr(module, name, None) for name in (*_FUNCTION.parameters, *_OWN_KEYS)}


def _hint_decides(options: Mapping[str, Any]) -> bool:
    return options["is_causal"] and options["key_padding_mask"] is None and not options["need_weights"]


def batch_first(tensor: Tensor, axis: int) -> Tensor:
    """Return `[B, T, E]` of a tensor whose batch is in this axis, or of one without a batch."""
    return tensor[None] if tensor.dim() == 2 else tensor.movedim(axis, 0) if axis else tensor


def _autocast(device: str) -> torch.dtype | None:
    """Return the dtype of the linear functions of a device, if it is not that of their inputs."""
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return None
