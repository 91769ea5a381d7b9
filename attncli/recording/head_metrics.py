"""Metrics of the heads of a call, reduced where its tensors are, while the program waits; no tensor is kept.

Query rows count that have a key and are no padding, which is a position that no query may attend to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attncli.attention import FORBIDDEN_BELOW
from attncli.recording.call import AttentionCall

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Bool, Float, Int

    _Rows = tuple[Int[Tensor, " R"], Float[Tensor, "B H R K"], Float[Tensor, "B H R K"], Bool[Tensor, "#B #H R K"]]

_CELLS, _ROWS = 2**20, 8  # of a call: cells that are measured at most, and query positions at least
_MEANS = 6  # of `COLUMNS`, from entropy to keys

# Also where the program replaced those in torch.
_matmul, _softmax = torch._C._VariableFunctions.matmul, torch._C._VariableFunctions.softmax


def measured_rows(call: AttentionCall) -> int:
    """Return how many query positions of a call are measured, spread evenly: all that are few enough."""
    batch, heads, queries, keys = call.shape
    return min(queries, max(_CELLS // (batch * heads * keys), _ROWS))


def head_sums(call: AttentionCall) -> Float[Tensor, "13+H H"] | None:
    """Return sums over the rows of a call, and their counts; the largest score; and products of two heads' weights.

    None is returned where neither its weights are known nor all that they are derived from.
    """
    if (measured := _measured(call)) is None:
        return None
    at, scores, weights, allowed = measured
    keys, is_self = torch.arange(call.shape[3], device=at.device), call.shape[2] == call.shape[3]
    entropy = torch.special.entr(weights).sum(-1)  # [B, H, R], as are all that follow
    counted = allowed.any(-1) & ~entropy.isnan()
    counted = counted & allowed.any(-2)[..., at] if is_self else counted
    later = counted & (at > 0) if is_self else counted  # the weight of the first position on itself is no sink
    weights = torch.where(counted[..., None], weights, 0)
    before = (at - 1).clamp(0, len(keys) - 1)[:, None].expand(*weights.shape[:3], 1)
    values = [
        entropy, entropy.exp(), weights[..., 0], weights.gather(-1, before)[..., 0],
        (weights * (at[:, None] - keys).abs()).sum(-1), allowed.sum(-1).expand(counted.shape).to(entropy),
    ]  # fmt: skip
    has = torch.stack([counted, counted, later, later & is_self, counted & is_self, counted])
    sums = torch.where(has, torch.stack(values), 0).sum((1, 3))
    highest = torch.where(counted, scores.amax(-1), -torch.inf).amax((0, 2))
    of_heads = weights.transpose(0, 1).flatten(1)
    return torch.cat([sums, has.sum((1, 3)).to(sums), highest[None], _matmul(of_heads, of_heads.mT)])


def head_metrics(sums: Sequence[Float[Tensor, "13+H H"]]) -> Float[np.ndarray, "C H"]:
    """Return the `COLUMNS` of a layer over all of its calls in a step; NaN is one that is not defined."""
    calls = torch.stack([*sums]).cpu()
    total, highest = calls.sum(0), calls[:, 2 * _MEANS].amax(0)
    means, products = total[:_MEANS] / total[_MEANS : 2 * _MEANS], total[2 * _MEANS + 1 :]
    sizes = products.diagonal().sqrt()
    similarity, twin = (products / sizes / sizes[:, None]).fill_diagonal_(-torch.inf).max(0)
    twin = torch.where(similarity.isfinite(), twin, torch.nan)  # none where a layer has one head
    columns = torch.stack([highest, *means, similarity, twin])
    return columns.masked_fill(columns.isneginf(), torch.nan).float().numpy()


def _measured(call: AttentionCall) -> _Rows | None:
    """Return the positions of the measured rows, their scores, −inf where they are hidden, weights and allowed keys."""
    rows, (*_, queries, keys) = measured_rows(call), call.shape
    at = queries - 1 - torch.arange(rows, device=call.device) * (queries - 1) // max(rows - 1, 1)  # the last first

    def of_rows(tensor: Tensor) -> Tensor:
        tensor = tensor.detach()[(None,) * (4 - tensor.dim())]
        return tensor if tensor.shape[2] == 1 else tensor[:, :, at]

    allowed = ((torch.arange(keys, device=call.device) <= at[:, None]) | (not call.is_causal))[None, None]
    bias: Any = 0
    for mask in call.masks:
        values, is_additive = of_rows(mask.values), mask.convention == "additive"
        is_hidden = values <= FORBIDDEN_BELOW if is_additive else (values != 0) == (mask.convention == "masked")
        allowed = allowed & ~is_hidden
        bias = bias + values.masked_fill(is_hidden, 0) if is_additive else bias
    if call.weights is not None:  # the program's own
        weights = _wide(of_rows(call.weights))
        scores = torch.full_like(weights, torch.nan) if call.scores is None else _wide(of_rows(call.scores))
        allowed = allowed & ~(scores <= FORBIDDEN_BELOW)
        return at, scores.masked_fill(~allowed, -torch.inf), weights, allowed
    q, k = (call.q, call.k) if call.project is None else call.project()[:2]
    if q is None or k is None or call.scale is None or call.unsupported is not None:
        return None
    q, k = _wide(of_rows(q)) * call.scale, _wide(k)
    together = q.reshape(len(q), k.shape[1], -1, q.shape[-1])  # the queries of all heads that share keys
    scores = _matmul(together, k.mT).reshape(-1, q.shape[1], rows, keys) + bias
    scores = scores if call.softcap is None else call.softcap * (scores / call.softcap).tanh()
    scores = scores.masked_fill(~allowed, -torch.inf)
    sinks = [] if call.sinks is None else [of_rows(call.sinks).to(scores).expand(*scores.shape[:3], 1)]
    return at, scores, _softmax(torch.cat([scores, *sinks], -1), -1)[..., :keys], allowed


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
