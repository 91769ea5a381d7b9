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
_LAYER_MASKS = ("src_mask", "src_key_padding_mask")
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
        given = _named(_FUNCTION, args, kwargs)
        packed = None if given["use_separate_proj_weight"] else given["in_proj_weight"]
        apart = given["q_proj_weight"], given["k_proj_weight"], given["v_proj_weight"]
        own = {name: given[name] for name in (*_OWN_KEYS, "static_k", "static_v")}
        layer = _Layer.of(given["num_heads"], packed, given["in_proj_bias"], apart, own)
        dropout = given["dropout_p"] if given["training"] else 0.0
        self._read(layer, given, 1, result[0], given["is_causal"], dropout=dropout, is_training=given["training"])

    def _read_module(
        self, module: Any, called: list[nn.Module], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        given = _named(_MODULE, (module, *args), kwargs)
        is_heeded = given["is_causal"] and not _takes_fast_path(module, given, result[0])
        self._read(
            _Layer.of_module(module), given, 0 if module.batch_first else 1, result[0], is_heeded,
            dropout=module.dropout if module.training else 0.0, is_training=module.training,
            findings=(_UNHEEDED,) if given["is_causal"] and given["attn_mask"] is None else (),
        )  # fmt: skip

    def _read(
        self, layer: _Layer, given: dict[str, Any], axis: int, output: Tensor, is_heeded: bool, **parts: Any
    ) -> None:
        """Read what the module and the function are given alike; `axis` is that of the batch."""
        inputs = [batch_first(given[name], axis) for name in _INPUTS]
        replaces_mask = is_heeded and given["key_padding_mask"] is None and not given["need_weights"]
        masks = _masks(layer.num_heads, given["attn_mask"], given["key_padding_mask"])
        parts["lineage"] = lineage(given["query"], given["key"], output)
        self._emit(layer, inputs, masks, replaces_mask, output=batch_first(output, axis), **parts)

    def _read_layer(
        self, module: Any, called: list[nn.Module], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Read a layer that took its fast path, which takes every mask for booleans: what is not 0 forbids."""
        if called:  # beside its fast path the layer calls its parts, and they were read
            return
        given, norm = _named(_LAYER, (module, *args), kwargs), module.norm1
        masks = _masks(module.self_attn.num_heads, given["src_mask"], given["src_key_padding_mask"], _LAYER_MASKS)
        biases = [mask.name for mask in masks if _has_bias(mask)]
        added = f"the numbers of {' and '.join(biases)} in the fast path" if biases else None

        def normed(x: Tensor) -> Tensor:
            if not module.norm_first:
                return x
            return _functions.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)

        place = self.context.place()
        self._emit(
            _Layer.of_module(module.self_attn, added), [given["src"]] * 3, masks, prepared=normed,
            place=place._replace(module=f"{place.module}.self_attn" if place.module else "self_attn"),
            findings=(_UNHEEDED,) if given["is_causal"] and given["src_mask"] is None else (),
            is_training=module.training,
        )  # fmt: skip

    def _emit(
        self,
        layer: _Layer,
        inputs: list[Tensor],
        masks: tuple[MaskArgument, ...],
        replaces_mask: bool = False,
        prepared: Callable[[Tensor], Tensor] = lambda x: x,
        **parts: Any,
    ) -> None:
        """Emit a call.

        Args:
            layer: the parameters.
            inputs: of the three projections, `[B, T, E]`.
            masks: as they were handed over.
            replaces_mask: whether `is_causal` takes their place.
            prepared: what becomes of the inputs before they are projected.
            parts: other attributes of AttentionCall.
        """
        if is_of_nothing(*inputs):
            return
        query, key, _ = inputs
        autocast = _autocast(query.device.type)

        def project() -> tuple[Tensor, Tensor, Tensor]:
            # Not kept: without gradients as here, a cast weight would be kept for the program, too.
            with torch.autocast(query.device.type, autocast, enabled=autocast is not None, cache_enabled=False):
                return layer.project([prepared(padded(each)) for each in inputs])

        masks = (own_tokens(key), *masks) if query.is_nested else masks
        own = {"place": self.context.place(), **parts}
        self.context.emit(AttentionCall(
            api="mha",
            shape=(query.size(0), layer.num_heads, longest(query), longest(key)),
            dtype=str(autocast or query.dtype).removeprefix("torch."),
            device=str(query.device),
            project=project if layer.unread is None else None,
            masks=() if replaces_mask else masks,
            ignored_masks=masks if replaces_mask else (),
            is_causal=replaces_mask,
            scale=(layer.weights[0].shape[0] // layer.num_heads) ** -0.5,
            unsupported=layer.unread,
            **own,
        ))  # fmt: skip


def _named(parameters: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by the names of their parameters."""
    bound = parameters.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


class _Layer(NamedTuple):
    """The parameters of an attention, wherever they were kept.

    Attributes:
        num_heads: H.
        weights: of the projections of queries, keys and values.
        biases: likewise.
        unread: what of it is not read, in words; None where all of it is.
    """

    num_heads: int
    weights: Sequence[Tensor]
    biases: Sequence[Tensor | None]
    unread: str | None = None

    @classmethod
    def of(cls, num_heads: int, packed: Tensor | None, bias: Tensor | None, apart: Any, own: Any) -> _Layer:
        """Return parameters, of which the weights are in one or `apart`; `own` are keys that are no tokens."""
        unread = ", ".join(name for name, each in own.items() if isinstance(each, Tensor) or each) or None
        weights = apart if packed is None else packed.chunk(3)
        return cls(num_heads, weights, (None, None, None) if bias is None else bias.chunk(3), unread)

    @classmethod
    def of_module(cls, module: nn.MultiheadAttention, unread: str | None = None) -> _Layer:
        """Return those of a module."""
        apart = module.q_proj_weight, module.k_proj_weight, module.v_proj_weight
        own = {name: getattr(module, name) for name in _OWN_KEYS}
        layer = cls.of(module.num_heads, module.in_proj_weight, module.in_proj_bias, apart, own)
        return layer._replace(unread=unread or layer.unread)

    def project(self, x: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v as `[B, H, T, D]` of three `[B, T, E]`."""
        projected = (_nn.linear(*each) for each in zip(x, self.weights, self.biases, strict=True))
        q, k, v = (each.view(*each.shape[:2], self.num_heads, -1).transpose(1, 2) for each in projected)
        return q, k, v


_UNHEEDED = Finding(
    "no-mask",
    "error",
    "is_causal=True was ignored: it is a hint about attn_mask, and without one the fast path of evaluation hides no "
    "later key",
    advice="hand over the causal mask itself, as nn.Transformer.generate_square_subsequent_mask makes it",
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


def _has_bias(mask: MaskArgument) -> bool:
    return mask.convention == "additive" and bool(((mask.values != 0) & (mask.values > FORBIDDEN_BELOW)).any())


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
    of_module = (
        not module.training
        and module.batch_first
        and module.num_heads % 2 == 0
        and module.in_proj_weight is not None
        and module.in_proj_bias is not None
        and module.bias_k is None
        and not module.add_zero_attn
    )
    return (
        of_module
        and query.dim() == 3
        and query is key is value
        and query.dtype == module.in_proj_weight.dtype
        and not any(mask is not None and mask.is_floating_point() for mask in map(given.get, _NAMES))
        and torch.backends.mha.get_fastpath_enabled()
        and not torch.is_autocast_enabled()
        and not output.requires_grad
    )
