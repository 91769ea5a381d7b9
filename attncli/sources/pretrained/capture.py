"""Recording attention where it happens: one function that every attention layer of transformers calls.

`AttentionInterface` lets a model run with an attention function of our own, which receives queries and keys as
the dot product takes them, the values, the scale, and the mask that our mask function made. It records them and
hands the work to the model's own eager function: the arithmetic stays the model's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
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

    wanted: frozenset[int]
    heads: Indices
    replacement: Expression | None
    layers: dict[int, LayerTrace] = field(default_factory=dict)
    calls: int = 0  # layers run in order, so this is also the index of the next one


_recorder: ContextVar[_Recorder] = ContextVar("recorder")


def run(
    model: Any,
    encoding: Any,
    layers: Sequence[int],
    heads: Indices,
    num_layers: int,
    replacement: Expression | None,
) -> tuple[LayerTrace, ...]:
    """Run the model on one encoded sentence and return the recorded layers, in the order asked.

    Args:
        model: a transformers model whose attention implementation is ours.
        encoding: what its tokenizer returned, a batch of one.
        layers: the layers to record.
        heads: the heads that were asked for.
        num_layers: how many attention layers the model has.
        replacement: a mask in place of the model's own, in every layer.

    Raises:
        NotExposedError: not every attention layer called the attention function.
    """
    recorder = _Recorder(frozenset(layers), heads, replacement)
    token = _recorder.set(recorder)
    try:
        with torch.inference_mode():
            model(**encoding.to(model.device))
    except AttnError:
        raise
    except (torch.OutOfMemoryError, MemoryError):
        count = encoding["input_ids"].shape[1]
        raise InputError(f"the sentence, of {count} tokens, does not fit into memory; shorten it") from None
    except Exception as error:  # a model's own code may raise anything
        raise NotExposedError(
            f"{model.config.model_type}: the model did not run on the text alone ({first_sentence(error)})"
        ) from None
    finally:
        _recorder.reset(token)
    if recorder.calls != num_layers:
        raise NotExposedError(
            f"{model.config.model_type}: its configuration has {num_layers} attention layers and {recorder.calls} "
            "could be watched; this architecture is not supported yet"
        )
    return tuple(recorder.layers[index] for index in layers)


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
    rule = None
    if recorder.replacement is not None:
        rule = RuleMask(recorder.replacement, query.shape[2], key.shape[2], query.shape[1])
        allowed = rule.rows(list(range(rule.heads)), np.arange(rule.queries))
        attention_mask = torch.from_numpy(np.array(allowed)).to(query.device)[None]
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        fill = torch.tensor(torch.finfo(query.dtype).min, dtype=query.dtype, device=query.device)
        attention_mask = torch.where(attention_mask, fill.new_zeros(()), fill)
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if eager is None:
        raise NotExposedError(f"{type(module).__name__} has no eager attention; this architecture is not supported yet")
    output, weights = eager(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    if recorder.calls in recorder.wanted:
        layer = _layer(recorder, query, key, value, attention_mask, rule, scaling, kwargs)
        recorder.layers[recorder.calls] = _proven(layer, to_numpy(output[0]))
    recorder.calls += 1
    return output, weights


def _layer(
    recorder: _Recorder,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    rule: RuleMask | None,
    scaling: float | None,
    kwargs: dict[str, Any],
) -> LayerTrace:
    """Return what one call of `_attend` was given, as a LayerTrace."""
    shape = (query.shape[1], query.shape[2], key.shape[2])
    sinks = kwargs.get("s_aux")
    mask, bias = _split(attention_mask, shape)
    return LayerTrace(
        layer=recorder.calls,
        kind="self",
        q=to_numpy(query[0]),
        k=to_numpy(key[0]),
        v=to_numpy(value[0]),
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        mask=rule or mask,
        heads=recorder.heads.among(shape[0], f"layer {recorder.calls}"),
        bias=bias,
        softcap=kwargs.get("softcap"),
        sinks=None if sinks is None else to_numpy(sinks),
        fill=float(torch.finfo(query.dtype).min),
    )


def _split(
    attention_mask: torch.Tensor | None, shape: tuple[int, int, int]
) -> tuple[Mask, np.ndarray[Any, Any] | None]:
    """Take an additive mask apart into the cells it forbids and the bias it adds to the others."""
    heads, queries, keys = shape
    if attention_mask is None:
        return RuleMask(Atom("full"), queries, keys, heads), None
    added = to_numpy(attention_mask[0])[..., :keys]  # [1 or H, Q or 1, K]
    added = np.broadcast_to(added, (len(added), queries, keys))
    allowed = added > np.finfo(np.float16).min / 2
    bias = np.where(allowed, added, 0)
    return smallest(allowed, heads), bias if bias.any() else None


def _proven(layer: LayerTrace, output: np.ndarray[Any, Any]) -> LayerTrace:
    """Return the layer with its proof: recomputed weights·V against the model's own output, `[Q, H, Dv]`."""
    errors = [np.abs(layer.head(head).output - output[:, head]).max() for head in range(layer.num_heads)]
    return replace(layer, proof=Proof(float(max(errors)), "the model's own attention output"))


AttentionInterface.register(ATTENTION, _attend)
AttentionMaskInterface.register(ATTENTION, _mask)
