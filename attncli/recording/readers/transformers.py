"""Reads the attention of transformers' models through `AttentionInterface`, the function that most of them call.

A model can run with an attention function of another's: it receives queries and keys as the dot product takes them,
the values, the scale, and the mask that a mask function of the same name made. The one here emits an `AttentionCall`
for each layer that is asked for and computes it by the model's own eager function, a block of rows at a time: the
arithmetic stays the model's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from attncli.errors import NotExposedError
from attncli.masks.expressions import Expression, RuleMask, smallest
from attncli.recording.call import AttentionCall, CallSite, MaskArgument

ATTENTION = "attncli"  # the name under which transformers knows these functions
EAGER_MASKS = "attncli_eager"  # the same, with the masks that transformers makes for eager attention
MASK = "attention_mask"  # what the mask of a call is named

_BLOCK = 2**21  # scores that exist at a time, over all heads
_NOT_IN_SDPA = ("softcap", "s_aux", "sinks", "position_bias")  # what the fused kernel drops, or has to make a [Q, K] of

# The tensors that a module may hand over: those that are recorded, and those that other kernels need to pack sequences.
# The ids of the tokens reach some modules with everything else that their model was given (GLM 5).
_KNOWN = {"position_bias", "s_aux", "sinks", "indices", "block_indices", "position_ids", "cache_position", "input_ids"}


class UnknownTensorError(NotExposedError):
    """A module hands a tensor to its attention function that may decide what is attended to."""


@dataclass(frozen=True)
class _AttentionArguments:
    """What a module hands to its attention function."""

    module: Any  # the attention layer
    query: torch.Tensor  # `[B, H, Q, D]`
    key: torch.Tensor  # `[B, Hkv, K, D]`
    value: torch.Tensor  # `[B, Hkv, K, Dv]`
    mask: torch.Tensor | None  # booleans `[B, 1, Q, K]`, or what the model made itself
    scaling: float | None  # what multiplies q·k; None is 1/√D
    more: Mapping[str, Any]  # everything else

    @property
    def bias(self) -> torch.Tensor | None:
        """A relative position bias (T5), `[1, H, Q, K]`."""
        return self.more.get("position_bias")

    @property
    def query_sinks(self) -> torch.Tensor | None:
        """One more logit for every query of every head (Inkling 2), `[B, H, Q, 1]`; None if there is none."""
        return self.more.get("sinks")

    @property
    def sinks(self) -> torch.Tensor | None:
        """Those, or one more logit for every head (GPT-OSS), `[1, H, 1, 1]`."""
        by_head = self.more.get("s_aux")
        return self.query_sinks if by_head is None else by_head[None, :, None, None]

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
        chosen = _scattered(blocks.where(blocks >= 0, count), (batch, groups, queries, count + 1))[..., :count]
        return chosen.repeat_interleave(size, dim=-1)[..., :keys].repeat_interleave(heads // groups, dim=1)

    def to_call(self, output: torch.Tensor | None, sums: torch.Tensor | None) -> AttentionCall:
        """Return what was computed of them; `output` is `[B, Q, H, Dv]`."""
        (batch, heads, queries, width), keys = self.query.shape, self.key.shape[2]
        masks = []
        if self.mask is not None:
            own = self.mask if self.mask.shape[-1] == keys else self.mask[..., :keys]
            masks.append(MaskArgument(MASK, own, "attend" if own.dtype == torch.bool else "additive"))
        if self.bias is not None:
            masks.append(MaskArgument("position_bias", self.bias, "additive"))
        return AttentionCall(
            api="transformers",
            place=CallSite(type(self.module).__module__, 0, type(self.module).__qualname__, None),
            shape=(batch, heads, queries, keys),
            dtype=str(self.query.dtype).removeprefix("torch."),
            device=str(self.query.device),
            q=self.query,
            k=self.key,
            v=self.value,
            masks=tuple(masks),
            scale=width**-0.5 if self.scaling is None else float(self.scaling),
            softcap=self.more.get("softcap"),
            sinks=self.sinks,
            output=None if output is None else output.transpose(1, 2),
            output_of="what its attention function gave",
            weight_sums=sums,
        )


@dataclass
class InterfaceReader:
    """A forward pass that the attention function here takes part in."""

    wants: Callable[[Any], bool]  # whether a module is to be emitted, before its attention is computed
    emit: Callable[[Any, AttentionCall], None]
    has_sdpa: bool  # the fused kernel computes what the eager function does
    mask: Expression | None = None  # in place of the model's own
    sums_weights: bool = False  # the weights of each row are added up
    # What is known of the masks of this pass, by their `id`; with the mask, lest another one gets its id.
    _kinds: dict[int, tuple[torch.Tensor, str]] = field(default_factory=dict)
    _replaced: dict[tuple[int, int, int], torch.Tensor] = field(default_factory=dict)

    def attend(self, handed: _AttentionArguments) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute one layer's attention, and emit it if it is asked for."""
        _check_known(handed)
        is_wanted = self.wants(handed.module)
        used = self._with_mask(handed)
        if not is_wanted:
            return self._sdpa_or_eager(used)
        sums: list[torch.Tensor] | None = [] if self.sums_weights else None
        output, weights = self._eager(used, sums)
        self.emit(handed.module, used.to_call(output, torch.cat(sums, dim=-1) if sums else None))
        return output, weights

    def _with_mask(self, handed: _AttentionArguments) -> _AttentionArguments:
        """Return arguments with the mask that applies: the user's, or the model's own and the keys that were chosen."""
        chosen = handed.chosen
        if self.mask is None:
            return handed if chosen is None else replace(handed, mask=_intersect(handed, chosen))
        if chosen is not None:
            name = type(handed.module).__name__
            raise NotExposedError(f"{name} chooses the keys of each query; --mask cannot replace that")
        cells = heads, queries, keys = handed.query.shape[1], handed.query.shape[2], handed.key.shape[2]
        if cells not in self._replaced:
            rule = RuleMask(self.mask, queries, keys, heads)
            allowed = np.array(rule.rows(list(range(heads)), np.arange(queries)))
            self._replaced[cells] = torch.from_numpy(allowed).to(handed.query.device)[None]
        return replace(handed, mask=self._replaced[cells])

    def _eager(
        self, used: _AttentionArguments, sums: list[torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Call the model's own eager function, on as many rows at a time as are cheap to hold.

        `sums` takes the sums of the weights of each row, `[B, H, rows]` of each block.
        """
        function = getattr(sys.modules[type(used.module).__module__], "eager_attention_forward", None)
        if function is None:
            raise NotExposedError(f"{type(used.module).__name__} has no eager attention; it is not supported yet")
        batch, heads, queries, _ = used.query.shape
        size = max(_BLOCK // (batch * heads * used.key.shape[2]), 1)
        outputs = []
        weights = None
        for start in range(0, queries, size):
            rows = slice(start, start + size)
            more = dict(used.more)
            if used.bias is not None:
                more["position_bias"] = _rows_of(used.bias, rows)
            if used.query_sinks is not None:
                more["sinks"] = used.query_sinks[:, :, rows]
            mask = None if used.mask is None else _additive(_rows_of(used.mask, rows), used.query.dtype)
            query = used.query[:, :, rows]
            output, weights = function(used.module, query, used.key, used.value, mask, scaling=used.scaling, **more)
            if self.mask is not None and used.mask is not None:
                _check_followed(used, weights, _rows_of(used.mask, rows))
            if sums is not None:
                sums.append(weights.float().sum(dim=-1))
            outputs.append(output)
        if len(outputs) == 1:
            return outputs[0], weights
        return torch.cat(outputs, dim=1), None

    def _sdpa_or_eager(self, used: _AttentionArguments) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute a layer that is not emitted, with the fused kernel where that gives the same result."""
        drops = any(used.more.get(name) is not None for name in _NOT_IN_SDPA) or hasattr(used.module, "sinks")
        kind = self._mask_kind(used.mask)
        if drops or not self.has_sdpa or kind == "blind" or used.value.shape[-1] != used.query.shape[-1]:
            return self._eager(used)
        more = {name: option for name, option in used.more.items() if name != "is_causal"}
        mask = None if kind in ("full", "causal") else used.mask
        more |= {"scaling": used.scaling, "is_causal": kind == "causal"}
        return sdpa_attention_forward(used.module, used.query, used.key, used.value, mask, **more)

    def _mask_kind(self, mask: torch.Tensor | None) -> str:
        """Classify a mask for the fused kernel: full, causal, other cells; or blind, if a query has no key."""
        if mask is None:
            return "full"
        if mask.dtype != torch.bool:
            return "cells"
        if id(mask) not in self._kinds:
            # A query without keys is a row of zeros to the fused kernel, a mean of all values to the eager function.
            kind = "cells" if bool(mask.any(dim=-1).all()) else "blind"
            if kind == "cells" and mask.shape[:2] == (1, 1):
                kind = str(smallest(mask[0].cpu().numpy(), 1))
            self._kinds[id(mask)] = mask, kind
        return self._kinds[id(mask)][1]


_current: ContextVar[InterfaceReader] = ContextVar("reader")


@contextmanager
def reading(reader: InterfaceReader) -> Iterator[None]:
    """Let a reader compute the attention of the next forward pass, whose model runs with `ATTENTION`."""
    token = _current.set(reader)
    try:
        yield
    finally:
        _current.reset(token)


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute one layer's attention `[B, Q, H, Dv]`, and its weights where they are whole."""
    return _current.get().attend(_AttentionArguments(module, query, key, value, attention_mask, scaling, kwargs))


def _boolean_mask(
    batch_size: int, q_length: int, kv_length: int, q_offset: int = 0, attention_mask: Any = None, **options: Any
) -> torch.Tensor:
    """Make the mask a model asks for, as booleans, even where every key is allowed; a block of rows at a time."""
    if attention_mask is not None and attention_mask.all():
        attention_mask = None
    options |= {"attention_mask": attention_mask, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    size = max(_BLOCK // (batch_size * kv_length), 1)
    blocks = [
        sdpa_mask(batch_size, min(size, q_length - start), kv_length, q_offset + start, **options)
        for start in range(0, q_length, size)
    ]
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=2)


def _check_known(handed: _AttentionArguments) -> None:
    """Raise NotExposedError for what a module hands to its attention function and no LayerTrace can say."""
    if unknown := [name for name, each in handed.more.items() if name not in _KNOWN and _holds_tensor(each)]:
        raise UnknownTensorError(
            f"{type(handed.module).__name__} hands {', '.join(unknown)} to its attention function; attn does not "
            "know what it does, and would show wrong numbers without it"
        )


def _holds_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (isinstance(value, list | tuple) and any(map(_holds_tensor, value)))


def _check_followed(used: _AttentionArguments, weights: torch.Tensor, allowed: torch.Tensor) -> None:
    """Raise NotExposedError if a query attends to a forbidden key although it has allowed ones."""
    if (weights * (~allowed & allowed.any(dim=-1, keepdim=True))).any():
        raise NotExposedError(f"{type(used.module).__name__} does not follow --mask; drop --mask")


def _intersect(handed: _AttentionArguments, chosen: torch.Tensor) -> torch.Tensor:
    """Return a mask that forbids the keys that were not chosen as well."""
    mask = handed.mask
    if mask is None:
        return chosen
    lowest = torch.finfo(handed.query.dtype).min
    return mask & chosen if mask.dtype == torch.bool else mask.masked_fill(~chosen, lowest)


def _additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what a mask adds to the scores."""
    if mask.dtype != torch.bool:
        return mask
    lowest = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=mask.device)
    return torch.where(mask, lowest.new_zeros(()), lowest)


def _scattered(indices: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bool, device=indices.device).scatter(-1, indices, True)


def _rows_of(cells: torch.Tensor, rows: slice) -> torch.Tensor:
    return cells if cells.shape[2] == 1 else cells[:, :, rows]


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, _boolean_mask)
AttentionInterface.register(EAGER_MASKS, _attention)
AttentionMaskInterface.register(EAGER_MASKS, eager_mask)
