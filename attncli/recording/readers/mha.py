"""`torch.nn.MultiheadAttention`, the function that it calls, and the layers of `torch.nn.Transformer` around it.

In evaluation these modules have a fast path, one function for a whole module, whose last bits differ from the other
path's. It is not taken while a `TorchFunctionMode` is on: so `watching` switches its own off while such a module runs,
and what the module computed is read from what it was called with.

The `is_causal` of these modules is a hint that `attn_mask` is causal, and what it does depends on the path: without
`key_padding_mask` and `need_weights` it takes the place of `attn_mask`, whatever that says; otherwise, and in every
fast path, it does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import Signature, signature
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from attncli.attention import FORBIDDEN_BELOW
from attncli.masks.findings import Finding
from attncli.recording.call import AttentionCall, MaskArgument
from attncli.recording.lineage import lineage
from attncli.recording.nested_tensors import longest, own_tokens, padded
from attncli.recording.readers.reader import Reader, ThreadContext, is_of_nothing

# Where the program puts functions of its own in the place of torch's, it is not to be called by us.
_nn, _functions = torch._C._nn, torch._C._VariableFunctions

_NAMES = ("attn_mask", "key_padding_mask")
_INPUTS = ("query", "key", "value")
_OWN_KEYS = ("bias_k", "bias_v", "add_zero_attn")
_FUNCTION = signature(F.multi_head_attention_forward)
_MODULE, _LAYER = signature(nn.MultiheadAttention.forward), signature(nn.TransformerEncoderLayer.forward)


def forward_of(module: nn.Module) -> Any:
    """Return the function that a module's class runs; a compiled one of torch.jit has none."""
    return getattr(type(module), "forward", None)


def is_fused(module: nn.Module) -> bool:
    """Return whether no function that a module itself calls is to be seen, so that it can take its fast path.

    A class with a `forward` of its own is not: what it calls is seen, and `super().forward` takes the other path.
    """
    forward = forward_of(module)
    if forward is nn.MultiheadAttention.forward:
        return True
    if forward is nn.TransformerEncoderLayer.forward:
        block = getattr(type(module), "_sa_block", None)
        return not module.training and block is nn.TransformerEncoderLayer._sa_block
    return forward is nn.TransformerEncoder.forward and not module.training


class Mha(Reader):
    """Reads a module, or the function, from what it is called with."""

    is_attention = True

    def __init__(self, context: ThreadContext) -> None:
        super().__init__(context)
        self.functions = {F.multi_head_attention_forward: self._read_function}
        self.modules = {
            nn.MultiheadAttention.forward: self._read_module,
            nn.TransformerEncoderLayer.forward: self._read_layer,
        }

    def _read_function(self, _: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if not is_of_nothing(*_tensors(args, kwargs)):
            self.context.emit(_of_function(self.context, result, _named(_FUNCTION, args, kwargs)))

    def _read_module(
        self, module: Any, called: list[nn.Module], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        if not is_of_nothing(*_tensors(args, kwargs)):
            self.context.emit(_of_module(self.context, module, result, _named(_MODULE, (module, *args), kwargs)))

    def _read_layer(
        self, module: Any, called: list[nn.Module], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        # Beside its fast path the layer calls its parts, and they were read.
        if not called and not is_of_nothing(*_tensors(args, kwargs)):
            self.context.emit(_of_layer(self.context, module, _named(_LAYER, (module, *args), kwargs)))


def _named(parameters: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by the names of their parameters."""
    bound = parameters.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    return [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]


class _Layer(NamedTuple):
    """The parameters of an attention, wherever they were kept.

    Attributes:
        num_heads: H.
        weights: of the projections of queries, keys and values.
        biases: likewise.
        added: which keys that are no tokens it adds to those of the tokens, in words; None where it adds none.
    """

    num_heads: int
    weights: Sequence[Tensor]
    biases: Sequence[Tensor | None]
    added: str | None

    @classmethod
    def of(cls, num_heads: int, packed: Tensor | None, bias: Tensor | None, apart: Any, own: Any) -> _Layer:
        """Return parameters.

        Args:
            num_heads: H.
            packed: the weights of all three projections in one; None where they are apart.
            bias: of all three.
            apart: the weights of the three.
            own: by their names, what it adds to the keys of the tokens or takes in place of them.
        """
        added = ", ".join(name for name, each in own.items() if isinstance(each, Tensor) or each) or None
        weights = apart if packed is None else packed.chunk(3)
        return cls(num_heads, weights, (None, None, None) if bias is None else bias.chunk(3), added)

    @classmethod
    def of_module(cls, module: nn.MultiheadAttention) -> _Layer:
        """Return those of a module."""
        apart = module.q_proj_weight, module.k_proj_weight, module.v_proj_weight
        own = {name: getattr(module, name) for name in _OWN_KEYS}
        return cls.of(module.num_heads, module.in_proj_weight, module.in_proj_bias, apart, own)

    def project(self, x: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v as `[B, H, T, D]` of three `[B, T, E]`."""
        projected = (_nn.linear(*each) for each in zip(x, self.weights, self.biases, strict=True))
        q, k, v = (each.view(*each.shape[:2], self.num_heads, -1).transpose(1, 2) for each in projected)
        return q, k, v


def _of_module(
    context: ThreadContext, module: nn.MultiheadAttention, result: tuple[Tensor, Tensor | None], given: dict[str, Any]
) -> AttentionCall:
    """Return the call of a module, by the arguments of its forward."""
    is_hint = given["is_causal"] and not _takes_fast_path(module, given, result[0])
    dropout = module.dropout if module.training else 0.0
    call = _of_arguments(
        context, _Layer.of_module(module), 0 if module.batch_first else 1, result, given, is_hint, dropout
    )
    is_unheeded = given["is_causal"] and given["attn_mask"] is None
    return replace(call, is_training=module.training, findings=(_UNHEEDED,) * is_unheeded)


def _of_function(context: ThreadContext, result: tuple[Tensor, Tensor | None], given: dict[str, Any]) -> AttentionCall:
    """Return the call of the function, by its arguments."""
    packed = None if given["use_separate_proj_weight"] else given["in_proj_weight"]
    apart = given["q_proj_weight"], given["k_proj_weight"], given["v_proj_weight"]
    own = {name: given[name] for name in (*_OWN_KEYS, "static_k", "static_v")}
    layer = _Layer.of(given["num_heads"], packed, given["in_proj_bias"], apart, own)
    dropout = given["dropout_p"] if given["training"] else 0.0
    call = _of_arguments(context, layer, 1, result, given, given["is_causal"], dropout)
    return replace(call, is_training=given["training"])


def _of_arguments(
    context: ThreadContext,
    layer: _Layer,
    axis: int,
    result: tuple[Tensor, Tensor | None],
    given: dict[str, Any],
    is_hint: bool,
    dropout: float,
) -> AttentionCall:
    """Return the call of a module or the function, by the arguments that they have in common.

    Args:
        context: where.
        layer: the parameters.
        axis: of the batch.
        result: what it gave.
        given: the arguments.
        is_hint: whether `is_causal` was said, on a path that may heed it.
        dropout: of this call.
    """
    return _call(
        context,
        layer,
        [batch_first(given[name], axis) for name in _INPUTS],
        _masks(layer.num_heads, given["attn_mask"], given["key_padding_mask"]),
        output=batch_first(result[0], axis),
        replaces_mask=is_hint and given["key_padding_mask"] is None and not given["need_weights"],
        dropout=dropout,
        lineage=lineage(given["query"], given["key"], result[0]),
    )


def _of_layer(context: ThreadContext, module: nn.TransformerEncoderLayer, given: dict[str, Any]) -> AttentionCall:
    """Return the call inside a layer that took its fast path, by the arguments of its forward.

    The path takes every mask for booleans: what is not 0 forbids.
    """
    place, names, src = context.place(), ("src_mask", "src_key_padding_mask"), given["src"]
    masks, findings = [], []
    for mask in _masks(module.self_attn.num_heads, given[names[0]], given[names[1]], names):
        if mask.convention == "additive":
            bias = (mask.values != 0) & (mask.values > FORBIDDEN_BELOW)
            if bias.any():
                findings.append(_taken_for_booleans(mask.name, int(bias.sum())))
                mask = mask._replace(values=mask.values.bool(), convention="masked")
        masks.append(mask)

    def normed(x: Tensor) -> Tensor:
        norm = module.norm1
        if not module.norm_first:
            return x
        return _functions.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)

    if given["is_causal"] and given["src_mask"] is None:
        findings.append(_UNHEEDED)
    call = _call(context, _Layer.of_module(module.self_attn), (src, src, src), tuple(masks), normed)
    name = f"{place.module}.self_attn" if place.module else "self_attn"
    return replace(call, place=place._replace(module=name), findings=tuple(findings), is_training=module.training)


def _call(
    context: ThreadContext,
    layer: _Layer,
    x: Sequence[Tensor],
    given: tuple[MaskArgument, ...],
    prepared: Callable[[Tensor], Tensor] = lambda x: x,
    replaces_mask: bool = False,
    **parts: Any,
) -> AttentionCall:
    """Return a call of what all ways in have in common.

    Args:
        context: where.
        layer: the parameters.
        x: the inputs of the three projections, `[B, T, E]`.
        given: the masks.
        prepared: what becomes of the inputs before they are projected.
        replaces_mask: whether `is_causal` takes the place of `attn_mask`.
        parts: other attributes of AttentionCall.
    """
    query, key, _ = x
    autocast = _autocast(query.device.type)

    def project() -> tuple[Tensor, Tensor, Tensor]:
        dense = [prepared(padded(each)) for each in x]
        # Not kept: without gradients as here, a cast weight would be kept for the program, too.
        with torch.autocast(query.device.type, autocast, enabled=autocast is not None, cache_enabled=False):
            return layer.project(dense)

    if query.is_nested:
        given = (own_tokens(key), *given)
    return AttentionCall(
        api="mha",
        place=context.place(),
        shape=(query.size(0), layer.num_heads, longest(query), longest(key)),
        dtype=str(autocast or query.dtype).removeprefix("torch."),
        device=str(query.device),
        project=project if layer.added is None else None,
        masks=() if replaces_mask else given,
        ignored_masks=given if replaces_mask else (),
        is_causal=replaces_mask,
        scale=(layer.weights[0].shape[0] // layer.num_heads) ** -0.5,
        unsupported=layer.added,
        **parts,
    )


_UNHEEDED = Finding(
    "no-mask",
    "error",
    "is_causal=True was ignored: it is a hint about attn_mask, and without one the fast path of evaluation hides no "
    "later key",
    advice="hand over the causal mask itself, as nn.Transformer.generate_square_subsequent_mask makes it",
)


def _taken_for_booleans(name: str, count: int) -> Finding:
    return Finding(
        "missing",
        "error",
        f"the fast path of nn.TransformerEncoderLayer takes {name} for booleans: {count} numbers that are to be added "
        "forbid instead",
        count,
        advice="call torch.backends.mha.set_fastpath_enabled(False), or hand over what forbids alone",
    )


def _masks(
    num_heads: int, attn_mask: Tensor | None, key_padding_mask: Tensor | None, names: tuple[str, str] = _NAMES
) -> tuple[MaskArgument, ...]:
    """Return the masks of `[Q, K]` or `[B·H, Q, K]`, and `[K]` or `[B, K]`; True and −inf forbid."""
    found = []
    for name, mask in zip(names, (attn_mask, key_padding_mask), strict=True):
        if mask is None:
            continue
        if mask is key_padding_mask:
            values = mask[None, None, None] if mask.dim() == 1 else mask[:, None, None]
        else:
            values = mask[None, None] if mask.dim() == 2 else mask.view(-1, num_heads, *mask.shape[1:])
        found.append(MaskArgument(name, values, "masked" if mask.dtype == torch.bool else "additive", mask))
    return tuple(found)


def batch_first(tensor: Tensor, axis: int) -> Tensor:
    """Return `[B, T, E]` of a tensor whose batch is in this axis, or of one without a batch."""
    return tensor[None] if tensor.dim() == 2 else tensor.movedim(axis, 0) if axis else tensor


def _autocast(device: str) -> torch.dtype | None:
    """Return what the linear functions of a device compute in, if it is not what their inputs are in."""
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return None


def _takes_fast_path(module: nn.MultiheadAttention, given: dict[str, Any], output: Tensor) -> bool:
    """Return whether a module that ran took its fast path, by the conditions that `forward` states."""
    query, key, value = (given[name] for name in _INPUTS)
    masks = (given["attn_mask"], given["key_padding_mask"])
    of_module = (
        not module.training
        and module.batch_first
        and module.num_heads % 2 == 0
        and module.in_proj_bias is not None
        and module.bias_k is None
        and not module.add_zero_attn
    )
    of_inputs = query.dim() == 3 and query is key and key is value and query.dtype == module.in_proj_weight.dtype
    return (
        torch.backends.mha.get_fastpath_enabled()
        and of_module
        and module.in_proj_weight is not None
        and of_inputs
        and not any(mask is not None and mask.is_floating_point() for mask in masks)
        and not torch.is_autocast_enabled()
        and not output.requires_grad
    )
