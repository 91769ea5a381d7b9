"""The mistakes that are made with masks, each planted in a healthy tiny model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any
from unittest.mock import patch

import pytest
import torch

Allowed = torch.Tensor  # [B, 1 or H, Q, K], True = attend
Plant = Callable[[Any, pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Bug:
    name: str  # what is wrong
    architecture: str  # of the healthy model it is planted in
    plant: Plant  # changes the model
    codes: frozenset[str]  # the findings of severity error that say so
    says: str  # what one of their messages contains
    also: frozenset[str]  # other errors of the layers that follow from it


def bug(name: str, architecture: str, plant: Plant, *codes: str, says: str = "", also: str = "") -> Bug:
    return Bug(name, architecture, plant, frozenset(codes), says, frozenset(also.split()))


def attentions(model: Any) -> list[Any]:
    ends = ("self_attn", ".attn", "attention.self", "attn.c", "SelfAttention", "encoder_attn")
    return [module for name, module in model.named_modules() if name.endswith(ends)]


def with_argument(module: Any, name: str, change: Callable[[Any, dict[str, Any]], Any]) -> None:
    parameters = signature(module.forward)

    def hook(_: Any, args: Any, kwargs: Any) -> Any:
        bound = parameters.bind_partial(*args, **kwargs)
        value = bound.arguments.get(name, bound.arguments.get("kwargs", {}).get(name))
        bound.arguments[name] = change(value, bound.arguments)
        return bound.args, bound.kwargs

    module.register_forward_pre_hook(hook, with_kwargs=True)


def each_mask(change: Callable[[Any, dict[str, Any]], Any], layers: tuple[int, ...], of: Callable[[Any], Any]) -> Plant:
    """Change the argument that is the mask in some layers, or in all, of a part of the model."""

    def plant(model: Any, _: pytest.MonkeyPatch) -> None:
        found = attentions(of(model))
        for module in [found[layer] for layer in layers] or found:
            with_argument(module, "attention_mask", change)

    return plant


def masks(change: Callable[[Allowed], Allowed], *layers: int, of: Callable[[Any], Any] = lambda model: model) -> Plant:
    def changed(mask: Any, arguments: dict[str, Any]) -> Any:
        if mask is None:  # the fused kernel is told that it is causal, and makes the mask itself
            hidden = arguments["hidden_states"]
            count = hidden.shape[1]
            return change(torch.ones(len(hidden), 1, count, count, dtype=torch.bool).tril())
        allowed = change(mask if mask.dtype == torch.bool else mask == 0)
        if mask.dtype == torch.bool:
            return allowed
        return torch.where(allowed, 0.0, torch.finfo(mask.dtype).min).to(mask.dtype)

    return each_mask(changed, layers, of)


def raw_masks(change: Callable[[torch.Tensor], Any]) -> Plant:
    def changed(mask: Any, _: dict[str, Any]) -> Any:
        return mask if mask is None or mask.dtype == torch.bool else change(mask)

    return each_mask(changed, (), lambda model: model)


def argument(name: str, change: Callable[[Any, dict[str, Any]], Any]) -> Plant:
    return lambda model, _: with_argument(model, name, change)


def function(name: str, wrap: Callable[[Any], Any]) -> Plant:
    def plant(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        home = sys.modules[type(model).__module__]
        monkeypatch.setattr(home, name, wrap(getattr(home, name)))

    return plant


def config_of_masks(name: str, **changes: Any) -> Plant:
    def wrap(build: Any) -> Any:
        def built(config: Any, *args: Any, **kwargs: Any) -> Any:
            with patch.multiple(config, **changes):
                return build(config, *args, **kwargs)

        return built

    return function(name, wrap)


def top_left(build: Any) -> Any:
    def built(*args: Any, **kwargs: Any) -> Any:
        mask = build(*args, **kwargs)
        past = kwargs.get("past_key_values")
        count = kwargs["inputs_embeds"].shape[1]
        if past is None or not past.get_seq_length():
            return mask
        keys = past.get_seq_length() + count
        allowed = torch.ones(1, 1, count, keys, dtype=torch.bool).tril()
        if kwargs["config"]._attn_implementation == "sdpa":
            return allowed
        return torch.where(allowed, 0.0, torch.finfo(torch.float32).min)

    return built


def strict(allowed: Allowed) -> Allowed:
    queries, keys = allowed.shape[-2:]
    return allowed & torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries - 1)


def one_head(allowed: Allowed) -> Allowed:
    heads = allowed.expand(-1, 4, -1, -1).clone()
    heads[:, 2] = True
    return heads


def other_softmax(_: Any) -> Any:
    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **_: Any) -> Any:
        key, value = (each.repeat_interleave(module.num_key_value_groups, 1) for each in (key, value))
        weights = (query @ key.mT * scaling + mask).softmax(-2)
        return (weights @ value).transpose(1, 2).contiguous(), weights

    return attend


def doubled_padding(model: Any, _: pytest.MonkeyPatch) -> None:
    padding: list[torch.Tensor] = []

    def remember(mask: Any, _: dict[str, Any]) -> Any:
        padding[:] = [] if mask is None or mask.ndim != 2 else [mask]
        return mask

    def doubled(mask: torch.Tensor) -> torch.Tensor:
        if not padding:
            return mask
        return mask + (1 - padding[0][:, None, None, :].to(mask.dtype)) * torch.finfo(mask.dtype).min

    with_argument(model, "attention_mask", remember)
    raw_masks(doubled)(model, _)


def sdpa_without_mask(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
        return sdpa(module, query, key, value, None, **{**kwargs, "is_causal": False})

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", attend)


def mixes_the_batch(model: Any, _: pytest.MonkeyPatch) -> None:
    layer = model.layers[1]
    layer.register_forward_hook(lambda _, __, output: output + 0.1 * output.mean(dim=0, keepdim=True))


BUGS = [
    bug("mask dropped in one layer", "llama", lambda model, _: with_argument(model.layers[1].self_attn,
        "attention_mask", lambda *_: None), "no-mask", "leak", also="pad"),
    bug("padding attended everywhere", "llama", argument("attention_mask",
        lambda _, arguments: torch.ones_like(arguments["input_ids"])), "pad"),
    bug("0 and 1 added to the scores", "bert", raw_masks(lambda mask: (mask == 0).to(mask.dtype)), "added-bool",
        also="pad"),
    bug("window one too wide", "mistral", config_of_masks("create_sliding_window_causal_mask", sliding_window=4),
        "window", says="4 keys, not 3 (+1)"),
    bug("one head looks ahead", "llama", masks(one_head, 1), "leak", "varies", also="pad"),
    bug("mask transposed", "llama", masks(lambda allowed: allowed.mT), "leak", also="missing pad shape"),
    bug("no query sees itself", "llama", masks(strict), "missing", "dead-row"),
    bug("a mask of another sentence", "llama", masks(lambda allowed: allowed.roll(1, 0)), "pad", "missing",
        also="dead-row"),
    bug("fill added twice", "llama", doubled_padding, "double-fill", also="proof"),
    bug("positions not derived", "gpt2", argument("position_ids",
        lambda _, arguments: torch.arange(arguments["input_ids"].shape[1])[None]), "padding-side"),
    bug("top-left with a cache", "llama", function("create_causal_mask", top_left), "cache"),
    bug("sentences of a batch are mixed", "llama", mixes_the_batch, "batch"),
    bug("sdpa without its mask", "llama", sdpa_without_mask, "backend"),
    bug("queries lost", "llama", lambda model, _: model.layers[1].self_attn.q_proj.weight.data.zero_(), "dead-row",
        says="4 heads weigh all keys alike in every row"),
    bug("softmax over the queries", "llama", function("eager_attention_forward", other_softmax), "axis",
        also="row-sum"),
    bug("a decoder that looks ahead", "bart", masks(torch.ones_like, 2, of=lambda model: model.decoder), "leak",
        also="pad"),
]  # fmt: skip
