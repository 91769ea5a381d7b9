"""The first way in: the attention function that most models of transformers call.

`AttentionInterface` lets a model run with an attention function of our own, which receives queries and keys as
the dot product takes them, the values, the scale, and the mask that our mask function made. The layers that were
asked for go through the model's own eager function, a block of rows at a time: the arithmetic stays the model's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from attncli.engines.torch.recorder import Arrival, Captured, Recorder, Sublayer
from attncli.errors import NotExposedError
from attncli.files import to_numpy
from attncli.masks.conventions import read_added
from attncli.masks.expressions import Atom, Mask, RuleMask, smallest
from attncli.trace.layer import LayerTrace

ATTENTION = "attncli"  # the name under which transformers knows our functions
EAGER_MASKS = "attncli_eager"  # the same, with the masks that transformers makes for eager attention

_BLOCK = 2**21  # scores that exist at a time, over all heads
_NOT_IN_SDPA = ("softcap", "s_aux", "sinks", "position_bias")  # what the fused kernel drops, or has to make a [Q, K] of

# The tensors that a module may hand over: those that are recorded, and those that other kernels need to pack sequences.
# The ids of the tokens reach some modules with everything else that their model was given (GLM 5).
_KNOWN = {"position_bias", "s_aux", "sinks", "indices", "block_indices", "position_ids", "cache_position", "input_ids"}


_MORE = ("position_bias", "s_aux", "sinks")  # those of them that are recorded


class UnknownTensorError(NotExposedError):
    """A module hands a tensor to its attention function that may decide what is attended to."""


@dataclass(frozen=True)
class _Call:
    """One layer's attention, as its module asks for it.

    Attributes:
        module: the attention layer.
        query: `[B, H, Q, D]`.
        key: `[B, Hkv, K, D]`.
        value: `[B, Hkv, K, Dv]`.
        mask: booleans from `_mask`, `[B, 1, Q, K]`; or what the model made itself.
        scaling: what multiplies q·k; None is 1/√D.
        more: what else the module hands to its attention function.
        rule: the mask that the user gave in place of the model's own, which `mask` has the cells of.
    """

    module: Any
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    scaling: float | None
    more: Mapping[str, Any]
    rule: RuleMask | None = None

    @property
    def bias(self) -> torch.Tensor | None:
        """A relative position bias (T5), `[1, H, Q, K]`."""
        return self.more.get("position_bias")

    @property
    def sinks(self) -> torch.Tensor | None:
        """One more logit for every head (GPT-OSS), `[H]`; None if there is none."""
        return self.more.get("s_aux")

    @property
    def query_sinks(self) -> torch.Tensor | None:
        """One more logit for every query of every head (Inkling 2), `[B, H, Q, 1]`; None if there is none."""
        return self.more.get("sinks")

    @property
    def chosen(self) -> torch.Tensor | None:
        """The keys that an indexer chose for every query, `[B, 1 or H, Q, K]`; None if there is none.

        DeepSeek-V3.2 and its kin choose keys, `indices` `[B, Q, n]`; MiniMax M3 chooses blocks of keys for each group
        of heads, `block_indices` `[B, Hkv, Q, n]`, where −1 is none. They put their choice into the mask themselves
        only where transformers' own functions run.
        """
        (batch, heads, queries, _), keys = self.query.shape, self.key.shape[2]
        if (indices := self.more.get("indices")) is not None:
            return _scattered(indices.long(), (batch, queries, keys))[:, None]
        if (blocks := self.more.get("block_indices")) is None:
            return None
        size = self.module.indexer.block_size
        count = -(-keys // size)
        groups = blocks.shape[1]
        kept = _scattered(blocks.where(blocks >= 0, count), (batch, groups, queries, count + 1))[..., :count]
        return kept.repeat_interleave(size, dim=-1)[..., :keys].repeat_interleave(heads // groups, dim=1)


def _scattered(indices: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bool, device=indices.device).scatter(-1, indices, True)


def _rows_of(cells: torch.Tensor, rows: slice) -> torch.Tensor:
    return cells if cells.shape[2] == 1 else cells[:, :, rows]


def _mask(
    batch_size: int, q_length: int, kv_length: int, q_offset: int = 0, attention_mask: Any = None, **options: Any
) -> torch.Tensor:
    """Make the mask a model asks for, as booleans, even where every key is allowed; a block of rows at a time."""
    if attention_mask is not None and attention_mask.all():
        attention_mask = None
    options |= {"attention_mask": attention_mask, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    size = max(_BLOCK // (batch_size * kv_length), 1)
    if size >= q_length:
        return sdpa_mask(batch_size, q_length, kv_length, q_offset, **options)
    mask = torch.empty(0)
    for start in range(0, q_length, size):
        block = sdpa_mask(batch_size, min(size, q_length - start), kv_length, q_offset + start, **options)
        if start == 0:
            mask = block.new_empty((batch_size, block.shape[1], q_length, kv_length))
        mask[:, :, start : start + size] = block
    return mask


@dataclass
class _Run:
    """A forward pass that our attention function takes part in.

    Attributes:
        recorder: keeps what is wanted of it.
        has_sdpa: whether transformers' fused kernel computes the same attention as the model's eager function.
        forms: what is known of the masks of this pass, by their `id`; with the mask, lest another one gets its id.
        replaced: masks in place of the model's own, by the `[H, Q, K]` they are for.
        earlier: the call before, and its output `[B, Q, H, Dv]` if it was computed.
    """

    recorder: Recorder
    has_sdpa: bool
    forms: dict[int, tuple[torch.Tensor, str]] = field(default_factory=dict)
    replaced: dict[tuple[int, int, int], tuple[RuleMask, torch.Tensor]] = field(default_factory=dict)
    earlier: tuple[_Call, torch.Tensor | None] | None = None

    def repeated(self, call: _Call) -> tuple[_Call, torch.Tensor | None] | None:
        """Return the call before if this one asks for the same weights with other values, as DiffLlama's second does.

        Both are one map of each head then, and their values stand side by side.
        """
        if self.earlier is None or id(call.module) not in self.recorder.calling:
            return None
        before = self.earlier[0]
        pairs = [(getattr(before, name), getattr(call, name)) for name in ("module", "query", "key", "mask")]
        pairs += [(before.more.get(name), call.more.get(name)) for name in _KNOWN]
        is_same = all(one is other for one, other in pairs) and before.scaling == call.scaling
        return self.earlier if is_same else None


_current: ContextVar[_Run] = ContextVar("run")


@contextmanager
def recording(recorder: Recorder, model: Any) -> Iterator[None]:
    """Record the attention of a model's next forward pass, in which it calls our attention function."""
    token = _current.set(_Run(recorder, model._supports_sdpa))
    try:
        yield
    finally:
        _current.reset(token)


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute one layer's attention `[B, Q, H, Dv]`, and record it if it was asked for; see `_Call`."""
    run = _current.get()
    recorder, request = run.recorder, run.recorder.request
    _check_known(type(module).__name__, kwargs)
    given = _Call(module, query, key, value, attention_mask, scaling, kwargs)
    before = run.repeated(given)
    place = recorder.arrive(module) if before is None else recorder.calling[id(module)]
    run.earlier = given, None
    if request.mask is not None:
        _check_replaceable(given, recorder.own_keys(place))
    call = _masked(given, run)
    if place not in recorder.wanted:
        return _fastest(call, run)
    heads = recorder.heads_of(place, query.shape[1], query.shape[2], key.shape[2])
    output, weights = None, None
    if not request.is_blank:
        sums: list[torch.Tensor] | None = [] if request.audits else None
        output, weights = _eager(call, sums)
        if sums is not None:
            recorder.arrivals[place] = Arrival(call.mask, torch.cat(sums, dim=-1), query.dtype)
    whole = output
    if before is not None:
        call = replace(call, value=torch.cat((before[0].value, value), dim=-1))
        whole = None if output is None or before[1] is None else torch.cat((before[1], output), dim=-1)
    run.earlier = replace(given, value=call.value), whole
    recorder.capture(_captured(call, whole), partial(_record, recorder, place, heads, call))
    if output is None:
        output = query.new_zeros(*query.transpose(1, 2).shape[:3], value.shape[-1])
    return output, weights


def _captured(call: _Call, whole: torch.Tensor | None) -> Captured:
    more = {name: call.more.get(name) for name in _MORE}
    return {"query": call.query, "key": call.key, "value": call.value, "mask": call.mask, "whole": whole, **more}


def _record(recorder: Recorder, place: Sublayer, heads: tuple[int, ...], call: _Call, captured: Captured) -> None:
    """Record a layer of each sentence from what was captured of it, on the CPU."""
    more = {**call.more, **{name: captured[name] for name in _MORE}}
    call = replace(call, more=more, **{name: captured[name] for name in ("query", "key", "value", "mask")})
    whole = captured["whole"]
    for number in range(len(recorder.batch.spans)):
        rows, columns = recorder.cells(number, place)
        layer = LayerTrace(layer=place[0], kind=place[1], heads=heads, **_arrays(call, number, rows, columns))
        own = None if whole is None else to_numpy(whole[number, rows])
        recorder.record(number, layer, own, "what its attention function gave")


def _check_known(name: str, more: Mapping[str, Any]) -> None:
    """Raise NotExposedError for what a module hands to its attention function and no LayerTrace can say."""
    if unknown := [key for key, given in more.items() if key not in _KNOWN and _holds_tensor(given)]:
        raise UnknownTensorError(
            f"{name} hands {', '.join(unknown)} to its attention function; what that does is not known here, and "
            "leaving it out would show wrong numbers"
        )


def _check_replaceable(call: _Call, own_keys: int | None) -> None:
    """Raise NotExposedError where a mask that the user gives cannot stand for the model's own."""
    name = type(call.module).__name__
    if call.chosen is not None:
        raise NotExposedError(f"{name} chooses the keys of each query; --mask cannot replace that")
    if own_keys is not None:
        raise NotExposedError(f"{name} has positions that are no tokens; --mask says nothing of them")


def _masked(call: _Call, run: _Run) -> _Call:
    """Return a call with the mask that applies: the user's, or the model's own and the keys that an indexer chose."""
    expression, chosen = run.recorder.request.mask, call.chosen
    if expression is None:
        return call if chosen is None else replace(call, mask=_both(call.mask, chosen, call.query.dtype))
    cells = call.query.shape[1], call.query.shape[2], call.key.shape[2]
    if cells not in run.replaced:
        heads, queries, keys = cells
        rule = RuleMask(expression, queries, keys, heads)
        allowed = np.array(rule.rows(list(range(heads)), np.arange(queries)))
        run.replaced[cells] = rule, torch.from_numpy(allowed).to(call.query.device)[None]
    rule, mask = run.replaced[cells]
    return replace(call, mask=mask, rule=rule)


def _holds_tensor(given: Any) -> bool:
    return isinstance(given, torch.Tensor) or (isinstance(given, list | tuple) and any(map(_holds_tensor, given)))


def _both(mask: torch.Tensor | None, chosen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a mask that forbids the keys that were not chosen as well."""
    if mask is None:
        return chosen
    return mask & chosen if mask.dtype == torch.bool else mask.masked_fill(~chosen, torch.finfo(dtype).min)


def _eager(call: _Call, sums: list[torch.Tensor] | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Call the model's own eager function, on as many rows at a time as are cheap to hold.

    `sums` takes the sums of the weights of each row, `[B, H, rows]` of each block.
    """
    function = getattr(sys.modules[type(call.module).__module__], "eager_attention_forward", None)
    if function is None:
        raise NotExposedError(f"{type(call.module).__name__} has no eager attention; it is not supported yet")
    batch, heads, queries, _ = call.query.shape
    size = max(_BLOCK // (batch * heads * call.key.shape[2]), 1)
    outputs = []
    weights = None
    for start in range(0, queries, size):
        rows = slice(start, start + size)
        more = dict(call.more)
        if call.bias is not None:
            more["position_bias"] = _rows_of(call.bias, rows)
        if call.query_sinks is not None:
            more["sinks"] = call.query_sinks[:, :, rows]
        mask = None if call.mask is None else _added(_rows_of(call.mask, rows), call.query.dtype)
        output, weights = function(
            call.module, call.query[:, :, rows], call.key, call.value, mask, scaling=call.scaling, **more
        )
        if call.rule is not None and call.mask is not None:
            _check_arrived(call, weights, _rows_of(call.mask, rows))
        if sums is not None:
            sums.append(weights.float().sum(dim=-1))
        outputs.append(output)
    if len(outputs) == 1:
        return outputs[0], weights
    return torch.cat(outputs, dim=1), None


def _check_arrived(call: _Call, weights: torch.Tensor, allowed: torch.Tensor) -> None:
    """Raise NotExposedError if a query attends to a forbidden key although it has allowed ones."""
    if (weights * (~allowed & allowed.any(dim=-1, keepdim=True))).any():
        raise NotExposedError(f"{type(call.module).__name__} does not follow --mask; its mask cannot be replaced")


def _added(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what a mask adds to the scores."""
    if mask.dtype != torch.bool:
        return mask
    lowest = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=mask.device)
    return torch.where(mask, lowest.new_zeros(()), lowest)


def _fastest(call: _Call, run: _Run) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute a layer that is not recorded, with the fused kernel where that gives the same result."""
    drops = any(call.more.get(name) is not None for name in _NOT_IN_SDPA) or hasattr(call.module, "sinks")
    form = _form(call.mask, run)
    if drops or not run.has_sdpa or form == "blind" or call.value.shape[-1] != call.query.shape[-1]:
        return _eager(call)
    more = {name: option for name, option in call.more.items() if name != "is_causal"}
    mask = None if form in ("full", "causal") else call.mask
    return sdpa_attention_forward(
        call.module, call.query, call.key, call.value, mask, scaling=call.scaling, is_causal=form == "causal", **more
    )


def _form(mask: torch.Tensor | None, run: _Run) -> str:
    """Classify a mask for the fused kernel: full, causal, other cells; or blind, if a query has no key."""
    if mask is None:
        return "full"
    if mask.dtype != torch.bool:
        return "cells"
    if id(mask) not in run.forms:
        # A query without keys is a row of zeros to the fused kernel, a mean of all values to the eager function.
        form = "cells" if bool(mask.any(dim=-1).all()) else "blind"
        if form == "cells" and mask.shape[:2] == (1, 1):
            form = str(smallest(mask[0].cpu().numpy(), 1))
        run.forms[id(mask)] = mask, form
    return run.forms[id(mask)][1]


def _arrays(call: _Call, number: int, rows: slice, columns: slice) -> dict[str, Any]:
    """Return what one sentence's attention is made of, as LayerTrace names it."""
    query, key, value = call.query[number, :, rows], call.key[number, :, columns], call.value[number, :, columns]
    heads, queries, keys = query.shape[0], query.shape[1], key.shape[1]
    mask: Mask = RuleMask(Atom("full"), queries, keys, heads)
    bias = None if call.bias is None else to_numpy(_cells(call.bias, number, rows, columns))
    fill = float(torch.finfo(query.dtype).min)
    if call.mask is not None:
        # Take what is added to the scores apart: the cells it forbids, the bias of the others, what it forbids with.
        given = _cells(call.mask, number, rows, columns)[..., :keys]  # [1 or H, Q or 1, K]
        added = given.cpu().numpy() if given.dtype == torch.bool else to_numpy(given)
        added = np.broadcast_to(added, (len(added), queries, keys))
        allowed = added
        if added.dtype != bool:
            reading = read_added(added)
            allowed = reading.allowed
            kept = np.where(allowed, added, 0)
            bias = kept if bias is None else bias + kept
            if len(reading.fills) == 1 and np.isfinite(reading.fills[0]):
                fill = reading.fills[0]
        mask = smallest(allowed, heads)
    if bias is not None:
        bias = np.array(np.broadcast_to(bias, (len(bias), queries, keys))) if bias.any() else None
    sinks = call.sinks if call.query_sinks is None else call.query_sinks[number, :, rows, 0]
    return {
        "q": to_numpy(query),
        "k": to_numpy(key),
        "v": to_numpy(value),
        "scale": query.shape[-1] ** -0.5 if call.scaling is None else float(call.scaling),
        "mask": call.rule or mask,
        "bias": bias,
        "softcap": call.more.get("softcap"),
        "sinks": None if sinks is None else to_numpy(sinks),
        "fill": fill,
    }


def _cells(cells: torch.Tensor, number: int, rows: slice, columns: slice) -> torch.Tensor:
    """Return one sentence's part of `[1 or B, 1 or H, 1 or Q, K]`."""
    own = cells[number if len(cells) > 1 else 0]
    return (own if own.shape[1] == 1 else own[:, rows])[..., columns]


AttentionInterface.register(ATTENTION, _attend)
AttentionMaskInterface.register(ATTENTION, _mask)
AttentionInterface.register(EAGER_MASKS, _attend)
AttentionMaskInterface.register(EAGER_MASKS, eager_mask)
