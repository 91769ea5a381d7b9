"""Recording attention where it happens: one function that every attention layer of transformers calls.

`AttentionInterface` lets a model run with an attention function of our own, which receives queries and keys as
the dot product takes them, the values, the scale, and the mask that our mask function made. It records them and
hands the work to the model's own eager function: the arithmetic stays the model's.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from attncli.errors import AttnError, InputError, NotExposedError
from attncli.masks.algebra import Atom, Expression, Mask, RuleMask, smallest
from attncli.selection import Indices
from attncli.sources.pretrained.loading import first_sentence
from attncli.sources.tensors import to_numpy
from attncli.trace import LayerTrace, Proof

ATTENTION = "attncli"  # the name under which transformers knows our functions


@dataclass
class _Recorder:
    """What one forward pass is asked for, and what it has given so far."""

    request: Request
    places: Mapping[str, Sequence[int]]
    kinds: Mapping[int, str]  # of every attention module, by its identity
    layers: dict[tuple[int, str], LayerTrace] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)  # of each kind, in the order of its layers


@dataclass(frozen=True)
class Request:
    """What a user asked of a checkpoint.

    Attributes:
        layers: indices of the layers to record.
        kind: the only kind of attention to record; None is every kind.
        heads: the heads that were asked for.
        mask: a mask in place of the model's own, in every layer.
    """

    layers: tuple[int, ...]
    kind: str | None
    heads: Indices
    mask: Expression | None


_recorder: ContextVar[_Recorder] = ContextVar("recorder")


def attention_kinds(model: Any) -> dict[int, str]:
    """Return the kind of every attention module of a model, by `id`: self, or encoder, decoder, cross.

    An attention module is one with no other attention module inside; which side it belongs to is in its name.
    """
    named = {name: module for name, module in model.named_modules() if "Attention" in type(module).__name__}
    inner = {name: m for name, m in named.items() if not any(other.startswith(name + ".") for other in named)}
    return {id(module): _kind(name, model.config.is_encoder_decoder) for name, module in inner.items()}


def _kind(name: str, is_encoder_decoder: bool) -> str:
    if not is_encoder_decoder:
        return "self"
    side = next((part for part in name.split(".") if part in ("encoder", "decoder")), "decoder")
    own = name.lower().rpartition(side + ".")[2]
    is_cross = side == "decoder" and any(word in own for word in ("cross", "encoder_attn", "encdec", "enc_dec"))
    return "cross" if is_cross else side


def run(
    model: Any,
    inputs: Mapping[str, Any],
    request: Request,
    kinds: Mapping[int, str],
    places: Mapping[str, Sequence[int]],
) -> tuple[LayerTrace, ...]:
    """Run the model on one encoded sentence and return the recorded layers, in the order asked.

    Args:
        model: a transformers model (or its encoder) whose attention implementation is ours.
        inputs: what its forward takes, a batch of one.
        request: what to record.
        kinds: of the whole model's attention modules, from `attention_kinds`.
        places: the indices of the layers that have each kind of attention; all of them have to be seen.

    Raises:
        NotExposedError: not every attention layer called the attention function.
    """
    recorder = _Recorder(request, places, kinds)
    token = _recorder.set(recorder)
    try:
        with torch.inference_mode():
            model(**{name: tensor.to(model.device) for name, tensor in inputs.items()})
    except AttnError:
        raise
    except (torch.OutOfMemoryError, MemoryError):
        count = inputs["input_ids"].shape[1]
        raise InputError(f"the sentence, of {count} tokens, does not fit into memory; shorten it") from None
    except Exception as error:  # a model's own code may raise anything
        raise NotExposedError(
            f"{model.config.model_type}: the model did not run on the text alone ({first_sentence(error)})"
        ) from None
    finally:
        _recorder.reset(token)
    expected = {kind: len(layers) for kind, layers in places.items()}
    if dict(recorder.calls) != expected:
        raise NotExposedError(
            f"{model.config.model_type}: its configuration has {_counted(expected)} attention layers and "
            f"{_counted(recorder.calls)} could be watched; this architecture is not supported yet"
        )
    chosen = [(index, kind) for index in request.layers for kind in places if request.kind in (None, kind)]
    return tuple(recorder.layers[key] for key in chosen if key in recorder.layers)


def _counted(layers: Mapping[str, int]) -> str:
    if set(layers) <= {"self"}:
        return str(layers.get("self", 0))
    return " and ".join(f"{count} {kind}" for kind, count in sorted(layers.items()))


def _mask(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Make the mask a model asks for, as booleans, even where every key is allowed."""
    return sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute one layer's attention with the model's own eager function, and record it if it was asked for.

    Args:
        module: the attention layer.
        query: `[B, H, Q, D]`.
        key: `[B, Hkv, K, D]`.
        value: `[B, Hkv, K, Dv]`.
        attention_mask: booleans from `_mask`, `[B, 1, Q, K]`; or what the model made itself.
        scaling: what multiplies q·k; None is 1/√D.
        kwargs: what else the model hands to its attention function.

    Returns:
        The output `[B, Q, H, Dv]` and the weights.
    """
    recorder = _recorder.get()
    request = recorder.request
    kind = recorder.kinds.get(id(module), "self")
    known = recorder.places.get(kind, ())
    # A call beyond the last layer is counted, and refused when all is done.
    index = known[recorder.calls[kind]] if recorder.calls[kind] < len(known) else -1
    recorder.calls[kind] += 1
    rule = None
    if request.mask is not None:
        rule = RuleMask(request.mask, query.shape[2], key.shape[2], query.shape[1])
        allowed = rule.rows(list(range(rule.heads)), np.arange(rule.queries))
        attention_mask = torch.from_numpy(np.array(allowed)).to(query.device)[None]
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        fill = torch.tensor(torch.finfo(query.dtype).min, dtype=query.dtype, device=query.device)
        attention_mask = torch.where(attention_mask, fill.new_zeros(()), fill)
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if eager is None:
        raise NotExposedError(f"{type(module).__name__} has no eager attention; this architecture is not supported yet")
    if kwargs.get("sinks") is not None:  # one logit for every query; a Trace has one for every head
        raise NotExposedError(f"{type(module).__name__} has a sink for every query, which is not supported yet")
    output, weights = eager(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    if index in request.layers and request.kind in (None, kind):
        shape = (query.shape[1], query.shape[2], key.shape[2])
        mask, bias = _split(attention_mask, kwargs.get("position_bias"), shape)
        sinks = kwargs.get("s_aux")
        layer = LayerTrace(
            layer=index,
            kind=kind,
            q=to_numpy(query[0]),
            k=to_numpy(key[0]),
            v=to_numpy(value[0]),
            scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
            mask=rule or mask,
            heads=request.heads.among(shape[0], f"layer {index}"),
            bias=bias,
            softcap=kwargs.get("softcap"),
            sinks=None if sinks is None else to_numpy(sinks),
            fill=float(torch.finfo(query.dtype).min),
        )
        recorder.layers[index, kind] = _proven(layer, to_numpy(output[0]))
    return output, weights


def _split(
    attention_mask: torch.Tensor | None, position_bias: torch.Tensor | None, shape: tuple[int, int, int]
) -> tuple[Mask, np.ndarray[Any, Any] | None]:
    """Take what is added to the scores apart into the cells it forbids and the bias of the others."""
    heads, queries, keys = shape
    # A relative position bias (T5), `[1, H, Q, K]`.
    bias = np.zeros((1, 1, 1), np.float32) if position_bias is None else to_numpy(position_bias[0])
    mask: Mask = RuleMask(Atom("full"), queries, keys, heads)
    if attention_mask is not None:
        added = to_numpy(attention_mask[0])[..., :keys]  # [1 or H, Q or 1, K]
        added = np.broadcast_to(added, (len(added), queries, keys))
        allowed = added > np.finfo(np.float16).min / 2
        mask = smallest(allowed, heads)
        bias = bias + np.where(allowed, added, 0)
    return mask, np.array(np.broadcast_to(bias, (len(bias), queries, keys))) if bias.any() else None


def _proven(layer: LayerTrace, output: np.ndarray[Any, Any]) -> LayerTrace:
    """Return the layer with its proof: recomputed weights·V against the model's own output, `[Q, H, Dv]`."""
    errors = [np.abs(layer.head(head).output - output[:, head]).max() for head in range(layer.num_heads)]
    return replace(layer, proof=Proof(float(max(errors)), "the model's own attention output"))


AttentionInterface.register(ATTENTION, _attend)
AttentionMaskInterface.register(ATTENTION, _mask)
