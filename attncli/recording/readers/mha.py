"""`torch.nn.MultiheadAttention`, the function that it calls, and the layers of `torch.nn.Transformer` around it.

In evaluation these modules have a fast path, one function for a whole module, whose last bits differ from the other
path's. It is not taken while a `TorchFunctionMode` is on: so `watch` switches its own off while such a module runs, and
its arguments are read.

The `is_causal` of these modules is a hint that `attn_mask` is causal, and its effect depends on the path: without
`key_padding_mask` and `need_weights` it takes the place of `attn_mask`; otherwise, and in every fast path, it does
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Signature, signature
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from attncli.attention import FORBIDDEN_BELOW
from attncli.masks.findings import Finding
from attncli.recording.call import MaskArgument
from attncli.recording.readers.reader import ThreadContext, emit, is_of_nothing, longest, own_tokens, padded

# Where the program puts functions of its own in the place of torch's, it is not to be called by us.
_nn, _functions = torch._C._nn, torch._C._VariableFunctions

_INPUTS = ("query", "key", "value")
_OWN_KEYS = ("bias_k", "bias_v", "add_zero_attn", "static_k", "static_v")  # keys that are no tokens
_FUNCTION = signature(F.multi_head_attention_forward)
_MODULE, _LAYER = signature(nn.MultiheadAttention.forward), signature(nn.TransformerEncoderLayer.forward)
_UNHEEDED = Finding(
    "no-mask", "error", "is_causal=True was ignored: without attn_mask, the fast path of evaluation masks nothing",
    advice="pass nn.Transformer.generate_square_subsequent_mask(T)",
)  # fmt: skip
_CONTRADICTED = "is_causal=True next to another attn_mask, of which the fast path applies the mask and others the hint"


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
    dropout = options["dropout_p"] if options["training"] else 0.0
    _emit(
        context, layer, options, _masks(options["num_heads"], options), 1, result[0],
        is_causal=_hint_decides(options), dropout=dropout, is_training=options["training"],
    )  # fmt: skip


def read_module(
    context: ThreadContext, module: Any, _: list[nn.Module], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> None:
    """Read a call of a module."""
    options = _named(_MODULE, (module, *args), kwargs)
    mask, is_causal, parts = options["attn_mask"], _hint_decides(options), dict[str, Any]()
    if options["is_causal"] and mask is None:
        is_causal, parts["findings"] = False, (_UNHEEDED,)
    elif is_causal and not module.training and not result[0].requires_grad:  # maybe by the fast path
        later = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).triu(1)
        fill = -torch.inf if mask.is_floating_point() else True
        is_causal = not torch.equal(mask, torch.zeros_like(mask).masked_fill(later, fill))
        parts["unsupported"] = _CONTRADICTED if is_causal else None
    axis, masks = 0 if module.batch_first else 1, _masks(module.num_heads, options)
    _emit(
        context, _parameters(module), options, masks, axis, result[0], is_causal=is_causal,
        dropout=module.dropout if module.training else 0.0, is_training=module.training, **parts,
    )  # fmt: skip


def read_layer(
    context: ThreadContext, module: Any, called: list[nn.Module], args: tuple[Any, ...], kwargs: dict[str, Any], _: Any
) -> None:
    """Read a layer that took its fast path, which takes every mask for booleans: numbers other than 0 forbid."""
    if called:  # out of its fast path the layer calls its parts, and they were read
        return
    named, norm, place = _named(_LAYER, (module, *args), kwargs), module.norm1, context.place()
    masks = _masks(module.self_attn.num_heads, named, "src_mask", "src_key_padding_mask")
    added = [mask for mask in masks if mask.convention == "additive"]
    biases = [one.name for one in added if bool(((one.values != 0) & (one.values > FORBIDDEN_BELOW)).any())]

    def normed(x: Tensor) -> Tensor:
        return _functions.layer_norm(padded(x), norm.normalized_shape, norm.weight, norm.bias, norm.eps)

    inputs, prepared = dict.fromkeys(_INPUTS, named["src"]), normed if module.norm_first else padded
    _emit(
        context, _parameters(module.self_attn), inputs, masks, 0, None, prepared,
        place=place._replace(module=f"{place.module}.self_attn" if place.module else "self_attn"),
        findings=(_UNHEEDED,) if named["is_causal"] and named["src_mask"] is None else (), is_training=module.training,
        unsupported=f"the numbers of {' and '.join(biases)} in the fast path" if biases else None,
    )  # fmt: skip


def _emit(
    context: ThreadContext,
    layer: Mapping[str, Any],
    options: Mapping[str, Any],
    masks: tuple[MaskArgument, ...],
    axis: int,
    output: Tensor | None,
    prepared: Callable[[Tensor], Tensor] = padded,
    is_causal: bool = False,
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

    masks = (own_tokens(key), *masks) if query.is_nested else masks
    emit(
        context, "mha", query, key, (weights[0].shape[0] // heads) ** -0.5, scale_factors=(),
        shape=(query.size(0), heads, longest(query), longest(key)),
        dtype=str(autocast or query.dtype).removeprefix("torch."),
        project=project if unread is None else None, unsupported=unread,
        masks=() if is_causal else masks, ignored_masks=masks if is_causal else (), is_causal=is_causal,
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


def _masks(
    num_heads: int, options: Mapping[str, Any], of_cells: str = "attn_mask", of_keys: str = "key_padding_mask"
) -> tuple[MaskArgument, ...]:
    """Return the masks of `[Q, K]` or `[B·H, Q, K]`, and `[K]` or `[B, K]`; True and −inf forbid."""
    cells, keys = options[of_cells], options[of_keys]
    masks = []
    if cells is not None:
        masks.append((of_cells, cells, cells if cells.dim() == 2 else cells.view(-1, num_heads, *cells.shape[1:])))
    if keys is not None:
        masks.append((of_keys, keys, keys.view(-1, 1, 1, keys.shape[-1])))
    return tuple(
        MaskArgument(name, values, "masked" if mask.dtype == torch.bool else "additive", mask)
        for name, mask, values in masks
    )


def batch_first(tensor: Tensor, axis: int) -> Tensor:
    """Return `[B, T, E]` of a tensor whose batch is in this axis, or of one without a batch."""
    return tensor[None] if tensor.dim() == 2 else tensor.movedim(axis, 0) if axis else tensor


def _autocast(device: str) -> torch.dtype | None:
    """Return the dtype of the linear functions of a device, if it is not that of their inputs."""
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return None
