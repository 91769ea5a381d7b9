"""Longformer (Beltagy et al. 2020, arXiv:2004.05150) and LED: a band beside the diagonal, and tokens that see all.

Which query and which key a cell of the band stands for is arithmetic with the module's own sizes. Were it wrong,
weights·V would not be what the module gave, which is compared in every run.

A base model is told which tokens see all others, and are seen by all. The classes for some tasks choose them before
they run it; here they are chosen as the class does that the checkpoint was saved from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from attncli.engines.torch.architectures.architecture import Architecture
from attncli.engines.torch.softmax_tracer import FORBIDDEN, softmax_call
from attncli.errors import NotExposedError
from attncli.recording.call import AttentionCall
from attncli.trace.layer import Proof


class Led(Architecture):
    """An encoder with a band, whose caller may choose global tokens."""

    def notes(self, config: Any, last: int) -> Iterator[str]:
        """See `Architecture.notes`."""
        choose = _chooser(config)
        if choose is None:
            yield (
                f"no token sees the whole text: {config.model_type} has global tokens only where its caller chooses "
                "them"
            )
        elif choose is _question:
            yield "a part of the text sees the whole of it where there are three separators, as --pair makes them"

    def inputs(self, config: Any, inputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return what a model reads, with the tokens that see all others where its class chooses them."""
        choose = _chooser(config)
        if choose is None or "global_attention_mask" in inputs:
            return inputs
        return {**inputs, "global_attention_mask": choose(config, inputs["input_ids"]).long()}

    def reach(self, config: Any, layer: int) -> int | None:
        """See `Architecture.reach`."""
        if _chooser(config) is not None:
            return None
        windows = config.attention_window
        return int(windows if isinstance(windows, int) else windows[layer]) // 2


class Longformer(Led):
    """The band of a base model, or the global tokens that a class for a task chooses."""

    is_exact = False  # where there are global tokens


# --- global tokens -------------------------------------------------------------------------------------------------


def _chooser(config: Any) -> Callable[[Any, torch.Tensor], torch.Tensor] | None:
    names = config.architectures if config.model_type == "longformer" else None
    if not isinstance(names, list):  # a file may say anything
        return None
    return next((_CHOOSERS[name] for name in names if isinstance(name, str) and name in _CHOOSERS), None)


def _first(_: Any, ids: torch.Tensor) -> torch.Tensor:
    return torch.arange(ids.shape[1]).expand_as(ids) == 0


def _question(config: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return the tokens before the first separator; none if there are not three, as of a question and a text."""
    is_separator = ids == config.sep_token_id
    return (is_separator.cumsum(dim=1) == 0) & (is_separator.sum(dim=1, keepdim=True) == 3)


_CHOOSERS: Mapping[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "LongformerForQuestionAnswering": _question,
    "LongformerForSequenceClassification": _first,
}


# --- the band ------------------------------------------------------------------------------------------------------


class _BandMap(NamedTuple):
    """One map for each head, with a row for every query and a column for every key; see `softmax_call`."""

    scores: torch.Tensor
    weights: torch.Tensor
    q: torch.Tensor | None = None
    k: torch.Tensor | None = None
    v: torch.Tensor | None = None
    output: torch.Tensor | None = None


class _SoftmaxLog(TorchFunctionMode):
    """Keeps what each softmax takes and gives, and lets no other mode look at anything."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See torch.overrides."""
        with torch._C.DisableTorchFunction():
            result = function(*args, **(kwargs or {}))
        if getattr(function, "__name__", "") == "softmax":
            self.calls.append((args[0], result))
        return result


@contextmanager
def read_bands(
    model: Any, wants: Callable[[Any], bool], emit: Callable[[Any, AttentionCall], None], tokens: int
) -> Iterator[None]:
    """Emit what the modules of a model compute that attend in a band; it may be one that has such an encoder.

    Args:
        model: the model.
        wants: says of a module whether what it computes is to be emitted.
        emit: takes a module and its call.
        tokens: how many there are, without what the model adds to fill its last block.
    """

    def run(module: Any, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with _SoftmaxLog() as log:
            returned = forward(*args, **kwargs)
        if wants(module):
            options = signature(forward).bind(*args, **kwargs).arguments
            whole, proofs = _band(module, options, log.calls, returned[0])
            call = softmax_call(*_cut(whole, tokens))
            emit(module, replace(call, output_of=_MODULE, proofs=tuple(proofs)))
        return returned

    modules = [module for module in model.modules() if type(module).__name__ in _BANDED]
    for module in modules:
        module.forward = partial(run, module, module.forward)
    try:
        yield
    finally:
        for module in modules:
            del module.forward


def _band(
    module: Any, options: Mapping[str, Any], softmax: Sequence[tuple[torch.Tensor, torch.Tensor]], returned: Any
) -> tuple[_BandMap, Sequence[Proof]]:
    """Return the map of a band `[B, T, H, G + 2w + 1]`, w keys to each side after the keys that every token sees.

    Those G tokens see every key in their turn: their rows come from a second softmax `[B·H, G, T]`, with queries, keys
    and values that no other row has; of these the proofs are returned too.
    """
    (scores, weights), *everywhere = softmax
    # A query that is padding has its weights taken away after the softmax: it sees nothing.
    is_padding = options["is_index_masked"][:, :, None, None]
    scores = scores.masked_fill(is_padding, -torch.inf).transpose(1, 2)
    weights = weights.masked_fill(is_padding, 0).transpose(1, 2)
    batch, heads, tokens, width = scores.shape
    side = module.one_sided_attn_window_size
    seen_by_all = width - (2 * side + 1)
    positions = torch.arange(tokens, device=scores.device)
    keys = positions[:, None] + torch.arange(width, device=scores.device) - seen_by_all - side
    keys = keys.expand(batch, tokens, width).clone()

    def projected(name: str) -> torch.Tensor:
        return _heads(getattr(module, name)(options["hidden_states"].transpose(0, 1)).transpose(0, 1), heads)

    q, k, v, output = projected("query") / module.head_dim**0.5, projected("key"), projected("value"), returned
    output = _heads(output, heads)
    if not everywhere:
        return _BandMap(*_placed(scores, weights, keys), q, k, v, output), ()
    chosen = [row.nonzero()[:, 0] for row in options["is_index_global_attn"]]
    for number, own in enumerate(chosen):
        keys[number, :, :seen_by_all] = -1
        keys[number, :, : len(own)] = own
    scores, weights = _placed(scores, weights, keys)
    own_scores, own_weights = (cells.view(batch, heads, -1, tokens) for cells in everywhere[0])
    own_v = projected("value_global")
    computed = weights[..., :tokens] @ v.to(weights.dtype)
    for number, rows in enumerate(chosen):
        scores[number, :, rows, :tokens] = own_scores[number, :, : len(rows)]
        weights[number, :, rows, :tokens] = own_weights[number, :, : len(rows)]
        computed[number, :, rows] = own_weights[number, :, : len(rows)] @ own_v[number].to(weights.dtype)
    errors = (computed - output).abs().amax(dim=(1, 2, 3)).tolist()
    largest = max(float(v.abs().max()), float(own_v.abs().max()), 1.0)
    proofs = [Proof(error, _MODULE, magnitude=largest) for error in errors]
    return _BandMap(scores, weights), proofs


_MODULE = "what its attention module gave"
_BANDED = ("LEDEncoderSelfAttention", "LongformerSelfAttention")


def _cut(whole: _BandMap, tokens: int) -> _BandMap:
    """Return a map without the positions that fill the last block; its last column is what lies outside of them.

    Raises:
        NotExposedError: a token attends to such a position.
    """
    if bool((whole.scores[:, :, :tokens, tokens:] > FORBIDDEN).any()):
        raise NotExposedError("a token attends to positions that are no tokens")
    cells = (cells[:, :, :tokens, :tokens] for cells in whole[:2])
    cut = _BandMap(*cells, *(None if array is None else array[:, :, :tokens] for array in whole[2:]))
    if cut.v is None or cut.output is None:
        return cut
    # A query that sees no key at all, as padding does, has weights for the positions that are cut off.
    is_blind = whole.weights[:, :, :tokens, tokens:].any(dim=-1, keepdim=True)
    if not bool(is_blind.any()):
        return cut
    return cut._replace(output=torch.where(is_blind, cut.weights @ cut.v.to(cut.weights.dtype), cut.output))


def _placed(scores: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores and weights with each cell in the column of its key, `[B, H, Q, Q + 1]`.

    Args:
        scores: of each query with the keys that it reaches, `[B, H, Q, C]`.
        weights: of these.
        keys: which they are, `[1 or B, Q, C]`; what lies outside of the sequence is none, and has the last column.
    """
    queries = scores.shape[2]
    columns = keys.where((keys >= 0) & (keys < queries), queries)[:, None].expand(scores.shape)
    size = (*scores.shape[:3], queries + 1)
    placed = weights.new_zeros(size).scatter_add_(-1, columns, weights)
    # A key that a row reaches twice has the weights of both cells; its score is that of one, and ln 2.
    count = scores.new_zeros(size).scatter_add_(-1, columns, (scores > FORBIDDEN).to(scores.dtype))
    found = scores.new_full(size, -torch.inf).scatter_reduce_(-1, columns, scores, "amax")
    return found.add_(count.clamp_(min=1).log_()), placed


def _heads(hidden: torch.Tensor, heads: int) -> torch.Tensor:
    """Return `[B, T, H·D]` as `[B, H, T, D]`."""
    return hidden.reshape(*hidden.shape[:2], heads, -1).transpose(1, 2)
