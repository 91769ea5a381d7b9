"""Operators of flash-attn and xformers: stand-ins with their names and arguments, computed by plain loops."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attncli.recording.call import AttentionCall
from attncli.recording.notes import Notes
from attncli.recording.readers import flash_xformers
from attncli.recording.readers.reader import ThreadContext, Watch
from attncli.recording.to_trace import traces
from attncli.recording.watch import watching

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


def _forward(q, k, v, dropout, scale, causal, left, right, softcap, slopes, softmax):
    past = k.shape[1] - q.shape[1]
    bias = None if slopes is None else lambda head, i, j: -float(slopes[head]) * abs(i + past - j)
    sees = rows(past, causal, left, right)
    return torch.stack([looped(*each, scale, sees, bias) for each in zip(q, k, v, strict=True)]), q.clone()


def _varlen(q, k, v, starts, others, most, most_keys, dropout, scale, causal, left=-1, right=-1, *rest):
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

BATCH, LENGTH, HEADS, GROUPS, WIDTH = 2, 5, 4, 2, 8
SCALE = 0.3


@pytest.fixture
def seen() -> Iterator[list[AttentionCall]]:
    calls: list[AttentionCall] = []
    with watching(calls.append):
        yield calls


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + len(shape)))


def is_proven(call: AttentionCall) -> None:
    made = traces(call)
    assert len(made) == call.shape[0]
    for trace in made:
        layer = trace.layer(0)
        assert layer.proof.max_abs_error < 1e-5


@pytest.mark.parametrize(
    ("keys", "causal", "window"),
    [(LENGTH, False, (-1, -1)), (LENGTH + 3, True, (-1, -1)), (LENGTH + 3, True, (2, -1)), (LENGTH, False, (1, 1))],
)
def test_flash_attn(seen: list[AttentionCall], keys: int, causal: bool, window: tuple[int, int]) -> None:
    q, k = drawn(BATCH, LENGTH, HEADS, WIDTH), drawn(BATCH, keys, GROUPS, WIDTH)
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625]) if causal else None
    flash_attn_forward(q, k, k + 1, 0.0, SCALE, causal, *window, 0.0, slopes, False)
    (call,) = seen
    assert (call.api, call.shape, call.scale) == ("flash", (BATCH, HEADS, LENGTH, keys), SCALE)
    is_proven(call)


def test_flash_attn_of_packed_sequences(seen: list[AttentionCall]) -> None:
    starts, others = torch.tensor([0, 2, 7]), torch.tensor([0, 4, 9])
    q, k = drawn(7, HEADS, WIDTH), drawn(9, HEADS, WIDTH)
    torch.ops.flash_attn._flash_attn_varlen_forward(q, k, k + 1, starts, others, 5, 5, 0.0, SCALE, causal=True)
    (call,) = seen
    assert call.shape == (2, HEADS, 5, 5)
    is_proven(call)
    first, second = traces(call)
    weights = second.layer(0).head(1).weights
    assert not np.triu(weights, 1).any()
    expected = looped(q[2:], k[4:], k[4:] + 1, SCALE, rows(0, True, -1, -1))
    np.testing.assert_allclose(second.layer(0).head(1).output, expected[:, 1], atol=1e-5)
    weights = first.layer(0).head(0).weights[:2]  # two queries of four keys
    np.testing.assert_allclose(weights[:, :4].sum(1), 1, atol=1e-5)
    assert (weights[0] > 0).tolist() == [True, True, True, False, False]


def test_an_operator_that_is_not_known_is_named(seen: list[AttentionCall]) -> None:
    x = drawn(BATCH, LENGTH, HEADS, WIDTH)
    torch.ops.flash_attn.fwd_kvcache(x, x, x)
    (call,) = seen
    assert call.unsupported == "its mask, as flash_attn::fwd_kvcache is not known here"
    assert traces(call) == ()


@pytest.mark.parametrize(("kind", "past"), [(0, None), (1, 0), (2, 3)])
def test_triangles_begin_top_left_or_end_bottom_right(kind: int, past: int | None, seen: list[AttentionCall]) -> None:
    q, k = drawn(BATCH, LENGTH, HEADS, WIDTH), drawn(BATCH, LENGTH + 3, HEADS, WIDTH)
    bias = drawn(BATCH, HEADS, LENGTH, LENGTH + 3)
    sees = rows(0, False, -1, -1) if past is None else rows(past, True, -1, -1)
    output = torch.stack(
        [looped(q[n], k[n], k[n], SCALE, sees, lambda h, i, j, n=n: float(bias[n, h, i, j])) for n in range(BATCH)]
    )
    named: dict[str, Any] = {"query": q, "key": k, "value": k, "bias": bias, "cu_seqlens_q": None, "cu_seqlens_k": None}
    named |= {"max_seqlen_q": None, "max_seqlen_k": None, "dropout_p": 0.0, "custom_mask_type": kind, "scale": SCALE}
    # torch has the operator, and no kernel of it for this processor.
    operator = torch.ops.aten._efficient_attention_forward
    context = ThreadContext(Watch(seen.append, None, Notes(), None))
    flash_xformers.read(context, operator, (), named, (output, None))
    (call,) = seen
    assert call.api == "xformers"
    is_proven(call)
