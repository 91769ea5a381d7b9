"""Hand-written attention, in the ways in which people write it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from live_calls import recomputed

from attncli.recording.call import AttentionCall
from attncli.recording.watch import watching

B, H, Q, K, D = 2, 3, 5, 7, 4


def seen(program: Callable[..., Any], *args: Any) -> list[AttentionCall]:
    calls: list[AttentionCall] = []
    with watching(calls.append):
        program(*args)
    return [call for call in calls if call.api == "softmax"]


def one(program: Callable[..., Any], *args: Any) -> AttentionCall:
    (call,) = seen(program, *args)
    return call


def exact(call: AttentionCall, weights: torch.Tensor, values: torch.Tensor | None = None) -> None:
    assert call.shape == tuple(weights.shape)
    assert torch.equal(call.weights, weights)
    assert torch.allclose(recomputed(call), weights.double(), atol=1e-6)
    if values is not None:
        assert torch.equal(call.v, values)
        assert torch.allclose(call.output, weights @ values, atol=1e-6)


def attended(qkv: tuple[torch.Tensor, ...], write: Callable[..., torch.Tensor]) -> AttentionCall:
    q, k, v = qkv
    made: list[torch.Tensor] = []

    def program() -> None:
        made.append(write(q @ k.mT))
        made[0] @ v

    call = one(program)
    exact(call, made[0], v)
    return call


def right(call: AttentionCall) -> None:
    assert not call.findings
    assert call.unsupported is None


@pytest.fixture
def qkv() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return tuple(torch.randn(B, H, length, D, generator=draw) for length in (Q, K, K))


CAUSAL = torch.ones(Q, K, dtype=torch.bool).tril(K - Q)


def test_one_query_of_a_decoder() -> None:
    state, encoded = torch.randn(B, D), torch.randn(B, K, D)
    made: list[Any] = []

    def luong() -> None:
        made.append(F.softmax(torch.bmm(encoded, state.unsqueeze(2)).squeeze(2), dim=1))
        torch.bmm(made[0].unsqueeze(1), encoded).squeeze(1)

    call = one(luong)
    exact(call, made[0][:, None, None], encoded[:, None])
    assert torch.equal(call.q[:, 0, 0], state)


MASK = torch.zeros(Q, K).masked_fill(~CAUSAL, -math.inf)


def _assigned(scores: torch.Tensor, index: Any) -> torch.Tensor:
    scores[index] = -math.inf
    return scores


def _in_a_view(scores: torch.Tensor) -> torch.Tensor:
    scores.view(B * H, Q, K).masked_fill_(~CAUSAL, -math.inf)
    return scores


@pytest.mark.parametrize(("lay", "name", "convention"), [
    (lambda s: s.masked_fill(~CAUSAL, -math.inf), "masked_fill", "masked"),
    (lambda s: torch.where(CAUSAL, s, torch.tensor(-1e30)), "where", "attend"),
    (lambda s: torch.where(~CAUSAL, torch.full_like(s, -1e30), s), "where", "masked"),
    (lambda s: s.where(CAUSAL, torch.tensor(-math.inf)), "where", "attend"),
    (lambda s: s + MASK, "added", "additive"),
    (lambda s: s - (-MASK), "added", "additive"),
    (lambda s: s.__iadd__(MASK), "added", "additive"),
    (lambda s: _assigned(s, ~CAUSAL.expand(B, H, Q, K)), "assigned", "masked"),
    (_in_a_view, "assigned", "masked"),
    (lambda s: s * CAUSAL - 1e10 * (1 - CAUSAL.float()), "added", "additive"),
    (lambda s: (lambda t: t.masked_fill(t == 0, -math.inf))(s.tril(K - Q)), "masked_fill", "masked"),
])  # fmt: skip
def test_ways_of_a_mask(lay: Any, name: str, convention: str, qkv: tuple[torch.Tensor, ...]) -> None:
    call = attended(qkv, lambda s: lay(s / 2).softmax(-1))
    assert [(mask.name, mask.convention) for mask in call.masks] == [(name, convention)]
    right(call)


def test_a_soft_cap_and_scales_in_parts(qkv: tuple[torch.Tensor, ...]) -> None:
    call = attended(qkv, lambda s: (30.0 * torch.tanh((s * 0.25).mul_(2) / 30.0) + MASK).softmax(-1))
    assert call.softcap == 30.0
    assert call.scale == pytest.approx(0.5)
    right(call)


@pytest.mark.parametrize(("write", "unsupported"), [
    (lambda s: (lambda w: w / w.sum(-1, True))((s / 2).softmax(-1) * CAUSAL), "what was done to the weights"),
    (lambda s: (s / 2).softmax(-1).square(), "what was done to the weights"),
    (lambda s: (s / 2).pow(3).softmax(-1), "what was done to the scores"),
    (lambda s: (s / 2).softmax(-1) * torch.rand(H, 1, 1), "what was done to the weights"),
    (lambda s: torch.where(CAUSAL, s / 2, s / 3).softmax(-1), "what was done to the scores"),
    (lambda s: (s / 2).masked_fill(s < 0, 0.0).softmax(-1), "what was done to the scores"),
    (lambda s: (5 * torch.tanh((s / 2 + MASK) / 5)).softmax(-1), "what was done to the scores"),
])  # fmt: skip
def test_what_is_not_read_is_named(write: Any, unsupported: str, qkv: tuple[torch.Tensor, ...]) -> None:
    q, k, v = qkv
    call = one(lambda: write(q @ k.mT) @ v)
    assert call.unsupported == unsupported
    assert not call.findings


def test_no_bugs(qkv: tuple[torch.Tensor, ...]) -> None:
    q, k, v = qkv
    dead = CAUSAL.clone()
    dead[0] = False
    gate = torch.rand(H, 1, 1)
    rows = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0])[:, None]

    def masked(fill: float = -1e9, mask: torch.Tensor = dead) -> torch.Tensor:
        return (q @ k.mT / 2).masked_fill(~mask, fill).softmax(-1)

    for program in (
        lambda: masked().masked_fill(~dead, 0.0) @ v,  # rows without keys are cleared
        lambda: masked() * dead @ v,
        lambda: masked() * rows @ v,  # queries that are padding
        lambda: masked() * gate @ v,
        lambda: (masked() * (torch.rand(B, H, Q, K) > 0.1) / 0.9) @ v,  # dropout by hand
        lambda: masked() * torch.bernoulli(torch.full((B, H, Q, K), 0.9)) @ v,
        lambda: (q @ k.mT / 2 + torch.zeros(Q, K)).softmax(-1) @ v,
        lambda: (q @ k.mT / 2 + torch.ones(Q, 1)).softmax(-1) @ v,
        lambda: (lambda w: w / w.sum(-1, keepdim=True))((q @ k.mT / 2).softmax(-2) + 1e-8) @ v,  # slot attention
        lambda: (lambda e: e / e.sum(-1, keepdim=True))((q @ k.mT / 2).softmax(-1) * dead.any(-1, True)) @ v,
    ):
        assert not one(program).findings
