"""The operators of flash-attn, with its arguments, where it is not installed: plain loops over cells.

Their arguments are those of the library's own sources; see `attncli/recording/readers/flash_xformers.py`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("flash_attn", "DEF")
_LIBRARY.define(
    "_flash_attn_forward(Tensor q, Tensor k, Tensor v, float dropout_p, float softmax_scale, bool causal, "
    "int window_size_left, int window_size_right, float softcap, Tensor? alibi_slopes, bool return_softmax) "
    "-> (Tensor, Tensor)"
)
_LIBRARY.define(
    "_flash_attn_varlen_forward(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, "
    "int max_seqlen_q, int max_seqlen_k, float dropout_p, float softmax_scale, bool causal, int window_size_left=-1, "
    "int window_size_right=-1, float softcap=0.0, Tensor? alibi_slopes=None, bool return_softmax=False, "
    "Tensor? block_table=None) -> (Tensor, Tensor)"
)
_LIBRARY.define("fwd_kvcache(Tensor q, Tensor k, Tensor v) -> Tensor")


def looped(q: Tensor, k: Tensor, v: Tensor, scale: float, sees: Callable[[int, int], bool], bias: Any = None) -> Tensor:
    """Attention of one sequence, `[T, H, D]`, cell by cell in double precision; a query without keys gives 0."""
    out = torch.zeros(*q.shape[:2], v.shape[-1], dtype=torch.float64)
    for head in range(q.shape[1]):
        group = head * k.shape[1] // q.shape[1]
        for i in range(len(q)):
            keys = [j for j in range(len(k)) if sees(i, j)]
            scores = [float(q[i, head].double() @ k[j, group].double()) * scale for j in keys]
            scores = [score + (0 if bias is None else bias(head, i, j)) for score, j in zip(scores, keys, strict=True)]
            for weight, j in zip(torch.tensor(scores, dtype=torch.float64).softmax(0), keys, strict=True):
                out[i, head] += weight * v[j, group].double()
    return out.float()


def rows(past: int, causal: bool, left: int, right: int) -> Callable[[int, int], bool]:
    """flash-attn's own words: key j is seen if i + past − left <= j <= i + past + right; causal is right = 0."""
    right = 0 if causal else right
    return lambda i, j: (left < 0 or j >= i + past - left) and (right < 0 or j <= i + past + right)


def _forward(q, k, v, dropout, scale, causal, left, right, softcap, slopes, softmax):  # type: ignore[no-untyped-def]
    past = k.shape[1] - q.shape[1]
    bias = None if slopes is None else lambda head, i, j: -float(slopes[head]) * abs(i + past - j)
    sees = rows(past, causal, left, right)
    return torch.stack([looped(*each, scale, sees, bias) for each in zip(q, k, v, strict=True)]), q.clone()


def _varlen(q, k, v, starts, others, most, most_keys, dropout, scale, causal, left=-1, right=-1, *rest):  # type: ignore[no-untyped-def]
    parts = []
    for n in range(len(starts) - 1):
        own, seen = slice(starts[n], starts[n + 1]), slice(others[n], others[n + 1])
        past = (others[n + 1] - others[n] - starts[n + 1] + starts[n]).item()
        parts.append(looped(q[own], k[seen], v[seen], scale, rows(past, causal, left, right)))
    return torch.cat(parts), q.clone()


_LIBRARY.impl("_flash_attn_forward", _forward, "CPU")
_LIBRARY.impl("_flash_attn_varlen_forward", _varlen, "CPU")
_LIBRARY.impl("fwd_kvcache", lambda q, k, v: q.clone(), "CPU")
flash_attn_forward = torch.ops.flash_attn._flash_attn_forward
