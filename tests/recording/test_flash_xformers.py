"""Operators of flash-attn and xformers: stand-ins with their names and arguments, computed by plain loops."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from flash_stand_in import flash_attn_forward, looped, rows
from torch import Tensor

from attncli.recording.call import AttentionCall
from attncli.recording.notes import Notes
from attncli.recording.readers import flash_xformers
from attncli.recording.readers.reader import ThreadContext, Watch
from attncli.recording.to_trace import traces
from attncli.recording.watch import watching

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
        assert layer.proof is not None
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
def test_xformers_lower_triangles_begin_top_left_or_end_bottom_right(
    kind: int, past: int | None, seen: list[AttentionCall]
) -> None:
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
