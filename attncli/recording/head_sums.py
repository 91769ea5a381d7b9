"""Sums over the rows of a call, made where its tensors are, while the program waits; no tensor is kept.

Query rows count that have a key and are no padding, which is a position that no query may attend to. Of long sequences
and large batches some rows are measured, spread evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from attncli.attention import FORBIDDEN_BELOW
from attncli.recording.call import AttentionCall, MaskArgument

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

ROWS, BATCH = 64, 8  # that are measured of a call at most: query positions, and rows of its batch

# Also where the program replaced those in torch.
_matmul, _softmax = torch._C._VariableFunctions.matmul, torch._C._VariableFunctions.softmax


class _Rows(NamedTuple):
    """The measured rows of a call."""

    at: Int[Tensor, " R"]
    scores: Float[Tensor, "B H R K"] | None  # −inf where a cell is hidden
    weights: Float[Tensor, "B H R K"]
    keys: Int[Tensor, "#B #H R"]  # how many each row may attend to; 0 at padding


def is_measurable(call: AttentionCall) -> bool:
    """Return whether a call has weights, or all that they are derived from."""
    has_inputs = call.project is not None or (call.q is not None and call.k is not None)
    is_derived = has_inputs and call.scale is not None and call.unsupported is None
    return call.device != "meta" and (call.weights is not None or is_derived)


def head_sums(call: AttentionCall) -> Float[Tensor, "13+H H"]:
    """Return the sums that `head_metrics` takes: over rows, with their counts; the largest score; products of weights.

    They are made on the call's device. The products are those of two heads, summed over the cells.
    """
    is_self = call.shape[2] == call.shape[3]
    rows = _measured(call, is_self)
    at, positions = rows.at, torch.arange(call.shape[3], device=rows.at.device)
    entropy = torch.special.entr(rows.weights).sum(-1)  # [B, H, R], as are all that follow
    counted = (rows.keys > 0) & ~entropy.isnan()
    weights = torch.where(counted[..., None], rows.weights, 0)
    later = counted & (at > 0) if is_self else counted  # the weight of the first position on itself is no sink
    before = (at - 1).clamp(0, len(positions) - 1)[:, None].expand(*weights.shape[:3], 1)
    distance = (weights * (at[:, None] - positions).abs()).sum(-1)
    means = {
        "entropy": (entropy, counted),
        "effective_keys": (entropy.exp(), counted),
        "sink": (weights[..., 0], later),
        "previous": (weights.gather(-1, before)[..., 0], later & is_self),
        "distance": (distance, counted & is_self),
        "keys": (rows.keys.to(weights.dtype).expand(counted.shape), counted),
    }
    values, has = (torch.stack(each) for each in zip(*means.values(), strict=True))
    highest = torch.full_like(entropy, torch.nan) if rows.scores is None else rows.scores.amax(-1)
    of_heads = weights.transpose(0, 1).flatten(1)
    parts = [
        torch.where(has, values, 0).sum((1, 3)),
        has.sum((1, 3)).to(weights.dtype),
        torch.where(counted, highest, -torch.inf).amax((0, 2))[None],
        _matmul(of_heads, of_heads.mT),
    ]
    return torch.cat(parts)


def _measured(call: AttentionCall, is_self: bool) -> _Rows:
    batch, _, queries, keys = call.shape
    chosen, at = _spread(batch, BATCH, call.device), _spread(queries, ROWS, call.device)

    def of_batch(tensor: Tensor) -> Tensor:
        tensor = tensor.detach().reshape((1,) * (4 - tensor.dim()) + tuple(tensor.shape))
        return tensor[chosen] if 1 < len(tensor) and batch > BATCH else tensor

    def of_rows(tensor: Tensor) -> Tensor:
        tensor = of_batch(tensor)
        return tensor[:, :, at] if 1 < tensor.shape[2] and queries > ROWS else tensor

    allowed = torch.arange(keys, device=call.device) <= (at[:, None] if call.is_causal else queries + keys)
    allowed, biases = allowed[(None,) * (4 - allowed.dim())], list[Tensor]()
    is_word = torch.ones(1, 1, keys, dtype=torch.bool, device=call.device)
    for mask in call.masks:
        values = of_rows(mask.values)
        is_hidden = _is_hidden(values, mask)
        allowed = allowed & ~is_hidden
        if is_self:
            is_word = is_word & ~_is_hidden(of_batch(mask.values), mask).all(-2)
        if mask.convention == "additive":
            biases.append(values.masked_fill(is_hidden, 0))
    scores, weights = _scores(call, of_batch, of_rows, biases), call.weights
    if scores is not None and weights is not None:  # where the program's own scores are hidden, by whatever it was
        allowed = allowed & (scores > FORBIDDEN_BELOW)
    scores = None if scores is None else scores.masked_fill(~allowed, -torch.inf)
    if weights is not None:
        weights = _wide(of_rows(weights))
    elif scores is not None:
        sinks = [] if call.sinks is None else [of_rows(call.sinks).to(scores).expand(*scores.shape[:3], 1)]
        weights = _softmax(torch.cat([scores, *sinks], -1), -1)[..., :keys]
    assert weights is not None
    count = allowed.sum(-1).expand(*allowed.shape[:2], len(at))
    return _Rows(at, scores, weights, count * is_word[..., at] if is_self else count)


def _scores(
    call: AttentionCall,
    of_batch: Callable[[Tensor], Tensor],
    of_rows: Callable[[Tensor], Tensor],
    biases: Sequence[Tensor],
) -> Float[Tensor, "B H R K"] | None:
    """Return the scores of rows before the mask: the program's own, or derived from its queries and keys."""
    if call.weights is not None:
        return None if call.scores is None else _wide(of_rows(call.scores))
    q, k = (call.q, call.k) if call.project is None else call.project()[:2]
    assert q is not None
    assert k is not None
    assert call.scale is not None
    q, k = _wide(of_rows(q)) * call.scale, _wide(of_batch(k))
    grouped = q.unflatten(1, (k.shape[1], -1)).flatten(2, 3)  # the queries of all heads that share keys
    scores = _matmul(grouped, k.mT).unflatten(2, (-1, q.shape[2])).flatten(1, 2)
    for bias in biases:
        scores = scores + bias
    return scores if call.softcap is None else call.softcap * (scores / call.softcap).tanh()


def _is_hidden(values: Tensor, mask: MaskArgument) -> Bool[Tensor, "#B #H #Q #K"]:
    if mask.convention == "additive":
        return values <= FORBIDDEN_BELOW
    return values == 0 if mask.convention == "attend" else values != 0


def _spread(count: int, most: int, device: str) -> Int[Tensor, " N"]:
    """Return this number of places, or as many as are measured at most, the first and the last among them."""
    if count <= most:
        return torch.arange(count, device=device)
    return torch.linspace(0, count - 1, most, device=device).long()


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
