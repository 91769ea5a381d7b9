"""Hand-written attention, in the ways in which people write it."""

from __future__ import annotations

import gc
import math
import re
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from live_calls import recomputed
from torch import nn

from attncli import watch
from attncli.recording.call import AttentionCall
from attncli.recording.watch import watching

B, H, Q, K, D = 2, 3, 5, 7, 4


def seen(program: Callable[..., Any], *args: Any) -> list[AttentionCall]:
    """Return the calls of a program that are hand-written, while their tensors exist."""
    calls: list[AttentionCall] = []
    with watching(calls.append):
        program(*args)
    return [call for call in calls if call.api == "softmax"]


def one(program: Callable[..., Any], *args: Any) -> AttentionCall:
    """Return the only call of a program."""
    (call,) = seen(program, *args)
    return call


def found(call: AttentionCall) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity) for finding in call.findings]


def exact(call: AttentionCall, weights: torch.Tensor, values: torch.Tensor | None = None) -> None:
    """Hold a call against the program's own weights, `[B, H, Q, K]`, and its parts against them."""
    assert call.shape == tuple(weights.shape)
    assert call.weights is not None
    assert torch.equal(call.weights, weights)
    assert torch.allclose(recomputed(call), weights.double(), atol=1e-6)
    if values is not None:
        assert call.v is not None
        assert torch.equal(call.v, values)
        assert call.output is not None
        assert torch.allclose(call.output, weights @ values, atol=1e-6)


def attended(qkv: tuple[torch.Tensor, ...], write: Callable[..., torch.Tensor]) -> AttentionCall:
    """Return the call of a program that makes weights of the product of queries and keys, held against them."""
    q, k, v = qkv
    made: list[torch.Tensor] = []

    def program() -> None:
        made.append(write(q @ k.mT))
        made[0] @ v

    call = one(program)
    exact(call, made[0], v)
    return call


def right(call: AttentionCall) -> None:
    """Hold that nothing is wrong with a call, and that all of it was read."""
    assert not call.findings
    assert call.unsupported is None


@pytest.fixture
def qkv() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return tuple(torch.randn(B, H, length, D, generator=draw) for length in (Q, K, K))  # type: ignore[return-value]


CAUSAL = torch.ones(Q, K, dtype=torch.bool).tril(K - Q)


# The ways of a product.


def by_matmul(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    weights = (q @ k.mT / D**0.5).softmax(-1)
    return weights, weights @ v


def by_bmm(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v = q.reshape(B * H, Q, D), k.reshape(B * H, K, D), v.reshape(B * H, K, D)
    weights = torch.bmm(q, k.transpose(1, 2)).div(D**0.5).softmax(-1)
    return weights.view(B, H, Q, K), torch.bmm(weights, v).view(B, H, Q, D)


def by_einsum_in_another_order(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scores = torch.einsum("zhkd,zhqd->qkzh", k, q) * D**-0.5
    weights = F.softmax(scores, dim=1)
    return weights.permute(2, 3, 0, 1), torch.einsum("qkzh,zhkd->zhqd", weights, v)


def by_keys_first(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    weights = (k @ q.mT * D**-0.5).softmax(-2)
    return weights.mT, weights.transpose(-2, -1) @ v


def by_values_first(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    weights = (k @ q.mT * D**-0.5).softmax(-2)
    return weights.mT, (v.mT @ weights).mT


WAYS = [
    by_matmul, by_bmm, by_einsum_in_another_order, by_keys_first, by_values_first,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_ways_of_a_product(way: Any, qkv: tuple[torch.Tensor, ...]) -> None:
    made: list[Any] = []
    call = one(lambda: made.extend(way(*qkv)))
    exact(call, made[0], qkv[2])
    assert torch.equal(call.output, made[1])
    right(call)


def test_three_and_two_axes() -> None:
    q, k, v = torch.randn(B, Q, D), torch.randn(B, K, D), torch.randn(B, K, D)
    made: list[Any] = []

    def three() -> None:
        made.append((torch.bmm(q, k.mT) / 2).softmax(-1))
        torch.bmm(made[-1], v)

    def two() -> None:
        made.append((torch.mm(q[0], k[0].t()) / 2).softmax(1))
        torch.mm(made[-1], v[0])

    exact(one(three), made[0][:, None], v[:, None])
    exact(one(two), made[1][None, None], v[0][None, None])


def test_one_query_of_a_decoder() -> None:
    """The state of a decoder asks; its axis of one comes and goes."""
    state, encoded = torch.randn(B, D), torch.randn(B, K, D)
    made: list[Any] = []

    def luong() -> None:
        made.append(F.softmax(torch.bmm(encoded, state.unsqueeze(2)).squeeze(2), dim=1))
        torch.bmm(made[0].unsqueeze(1), encoded).squeeze(1)

    call = one(luong)
    exact(call, made[0][:, None, None], encoded[:, None])
    assert torch.equal(call.q[:, 0, 0], state)


# The ways of a mask.

MASK = torch.zeros(Q, K).masked_fill(~CAUSAL, -math.inf)


def _assigned(scores: torch.Tensor, index: Any) -> torch.Tensor:
    scores[index] = -math.inf
    return scores


def _added_in_place(scores: torch.Tensor) -> torch.Tensor:
    scores += MASK
    return scores


def _in_a_view(scores: torch.Tensor) -> torch.Tensor:
    scores.view(B * H, Q, K).masked_fill_(~CAUSAL, -math.inf)
    return scores


@pytest.mark.parametrize(
    ("lay", "name", "convention"),
    [
        (lambda s: s.masked_fill(~CAUSAL, -math.inf), "masked_fill", "masked"),
        (lambda s: torch.where(CAUSAL, s, torch.tensor(-1e30)), "where", "attend"),
        (lambda s: torch.where(~CAUSAL, torch.full_like(s, -1e30), s), "where", "masked"),
        (lambda s: s.where(CAUSAL, torch.tensor(-math.inf)), "where", "attend"),
        (lambda s: s + MASK, "added", "additive"),
        (lambda s: s - (-MASK), "added", "additive"),
        (_added_in_place, "added", "additive"),
        (lambda s: _assigned(s, ~CAUSAL.expand(B, H, Q, K)), "assigned", "masked"),
        (_in_a_view, "assigned", "masked"),
        (lambda s: s * CAUSAL - 1e10 * (1 - CAUSAL.float()), "added", "additive"),
        (lambda s: (lambda t: t.masked_fill(t == 0, -math.inf))(s.tril(K - Q)), "masked_fill", "masked"),
    ],
)
def test_ways_of_a_mask(lay: Any, name: str, convention: str, qkv: tuple[torch.Tensor, ...]) -> None:
    call = attended(qkv, lambda s: lay(s / 2).softmax(-1))
    assert [(mask.name, mask.convention) for mask in call.masks] == [(name, convention)]
    right(call)


def test_a_soft_cap_and_scales_in_parts(qkv: tuple[torch.Tensor, ...]) -> None:
    call = attended(qkv, lambda s: (30.0 * torch.tanh((s * 0.25).mul_(2) / 30.0) + MASK).softmax(-1))
    assert call.softcap == 30.0
    assert call.scale == pytest.approx(0.5)
    right(call)


@pytest.mark.parametrize("is_masked_first", [False, True])
def test_a_scale_of_each_head_hides_nothing(is_masked_first: bool, qkv: tuple[torch.Tensor, ...]) -> None:
    q, k, v = qkv
    scale = torch.linspace(5, 20, H)[:, None, None]
    call = one(lambda: (q @ k.mT * scale).softmax(-1) @ v)
    assert (call.scale, call.unsupported, call.findings) == (None, "a factor of each head", ())
    assert call.weights is not None
    assert torch.equal(call.weights, (q @ k.mT * scale).softmax(-1))
    with watch() as calls:
        scores = q @ k.mT
        scores = scores.masked_fill(~CAUSAL, -math.inf) * scale if is_masked_first else scores * scale
        scores.masked_fill(~CAUSAL, -math.inf).softmax(-1) @ v
    assert calls[0].mask == "causal"
    calls.check("causal")


@pytest.mark.parametrize(
    ("write", "unsupported"),
    [
        (lambda s: (lambda w: w / w.sum(-1, True))((s / 2).softmax(-1) * CAUSAL), "what was done to the weights"),
        (lambda s: (s / 2).softmax(-1).square(), "what was done to the weights"),
        (lambda s: (s / 2).pow(3).softmax(-1), "what was done to the scores"),
        (lambda s: (s / 2).softmax(-1) * torch.rand(H, 1, 1), "what was done to the weights"),
        (lambda s: torch.where(CAUSAL, s / 2, s / 3).softmax(-1), "what was done to the scores"),
        (lambda s: (s / 2).masked_fill(s < 0, 0.0).softmax(-1), "what was done to the scores"),
        (lambda s: (5 * torch.tanh((s / 2 + MASK) / 5)).softmax(-1), "what was done to the scores"),
    ],
)
def test_what_is_not_read_is_named(write: Any, unsupported: str, qkv: tuple[torch.Tensor, ...]) -> None:
    """The weights are the program's own nevertheless."""
    q, k, v = qkv
    call = one(lambda: write(q @ k.mT) @ v)
    assert call.unsupported == unsupported
    assert not call.findings


@pytest.mark.parametrize(
    "attend",
    [
        lambda s, v: (lambda e: e / e.sum(-1, keepdim=True))((s / 2).exp()) @ v,  # a softmax that is written out
        lambda s, v: F.log_softmax(s / 2, -1).exp() @ v,
        lambda s, v: ((s / 2).softmax(-1) - 0.2 * (s / 3).softmax(-1)) @ v,  # the differential transformer
        lambda s, v: torch.einsum("hg,bhij->bgij", torch.randn(H, H), s).softmax(-1) @ v,  # talking heads
        lambda s, v: torch.einsum("bhij,hg->bgij", s.softmax(-1), torch.randn(H, H)) @ v,
        lambda s, v: (s / 2 + MASK)[:, :, :, :4].softmax(-1) @ v[:, :, :4],  # a cache longer than what it holds
        lambda s, v: (s / 2).softmax(-1)[:, 1:] @ v[:, 1:],
    ],
)
def test_what_is_not_followed_is_counted(attend: Any, qkv: tuple[torch.Tensor, ...]) -> None:
    q, k, v = qkv
    with watch() as calls:
        attend(q @ k.mT, v)
    assert not calls
    (note,) = calls.notes
    assert re.match(r"1 softmax is not shown|2 softmaxes are not shown", note)


def test_a_query_that_sees_no_key_has_the_weights_that_its_fill_gives(qkv: tuple[torch.Tensor, ...]) -> None:
    q, k, v = qkv
    hidden = torch.zeros(B, 1, Q, K, dtype=torch.bool)
    hidden[1, :, 2:] = True
    weights = (q @ k.mT / 2).masked_fill(hidden, torch.finfo(torch.float32).min).softmax(-1)
    with watch() as calls:
        (q @ k.mT / 2).masked_fill(hidden, torch.finfo(torch.float32).min).softmax(-1) @ v
    for trace, expected in zip(calls[0].traces, weights, strict=True):
        mine = [trace.layer(0).head(head).weights for head in range(H)]
        np.testing.assert_allclose(mine, expected.numpy(), atol=1e-6)


# Bugs.


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize(
    ("write", "code", "severity"),
    [
        (lambda s, v: (s / 2).softmax(-1) * CAUSAL @ v, "after-softmax", "error"),
        (lambda s, v: torch.where(CAUSAL, (s / 2).softmax(-1), 0.0) @ v, "after-softmax", "error"),
        (lambda s, v: F.softmax(s / 2) @ v, "axis", "error"),
        (lambda s, v: (s / 2).softmax(-1).mT @ torch.ones(Q, 2), "axis", "note"),
        (lambda s, v: (s / 2 + CAUSAL).softmax(-1) @ v, "added-bool", "error"),
        (lambda s, v: (s / 2 * CAUSAL).softmax(-1) @ v, "no-mask", "error"),
        (lambda s, v: (s / 2).tril(K - Q).softmax(-1) @ v, "no-mask", "error"),
        (lambda s, v: (s / 2).masked_fill(~CAUSAL, 0).softmax(-1) @ v, "no-mask", "error"),
    ],
)
def test_bugs(write: Any, code: str, severity: str, qkv: tuple[torch.Tensor, ...]) -> None:
    q, k, v = qkv

    class Attention(nn.Module):
        def forward(self) -> None:
            write(q @ k.mT, v)

    call = one(Attention().eval())
    assert found(call) == [(code, severity)]
    assert call.weights is None or call.weights.shape == call.shape


def test_dropout_left_on_on_purpose(qkv: tuple[torch.Tensor, ...]) -> None:
    q, k, v = qkv

    class Sampled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.2)

        def forward(self) -> None:
            self.drop((q @ k.mT / 2).softmax(-1)) @ v

    model = Sampled()
    assert not one(model).findings
    model.eval().drop.train()
    assert found(one(model)) == [("dropout", "note")]
    assert one(model.eval()).dropout == 0


def test_no_bugs(qkv: tuple[torch.Tensor, ...]) -> None:
    """What looks like a bug and is none."""
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


# What is no attention.


def test_no_attention() -> None:
    x, y, w = torch.randn(B, Q, D), torch.randn(B, Q, D), nn.Parameter(torch.randn(D, K))
    rows = torch.randn(K, D)
    experts = torch.randn(B, Q, K, D)
    with torch.no_grad():
        programs: list[Callable[[], Any]] = [
            lambda: F.softmax(x @ w, -1),  # a classifier
            lambda: torch.softmax(F.linear(x, rows), -1) @ rows,  # a layer, not a product
            lambda: torch.softmax(x @ w, -1) @ w.T,  # the words that a model may say, as an embedding
            lambda: torch.einsum("bqk,bqkd->bqd", (x @ rows.T).softmax(-1), experts),  # a router
            lambda: ((x @ rows.T).softmax(-1).unsqueeze(-1) * experts).sum(-2),
            lambda: (x @ rows.T).softmax(-1).topk(2),
            lambda: torch.multinomial((x[0] @ rows.T).softmax(-1), 1),  # sampling
            lambda: x * (x @ y.mT).softmax(-1).sum(-1, keepdim=True),  # gating
            lambda: F.cross_entropy(x[0] @ y[0].T, torch.arange(Q)),  # a contrastive loss
            lambda: -(x[0] @ y[0].T).softmax(-1).diag().log().mean(),
            lambda: (x @ y.mT).sigmoid() @ x,  # a product without a softmax
            lambda: (-(x @ y.mT).softmax(-1) * (y @ x.mT).log_softmax(-1)).sum(-1),  # a distillation
            lambda: x @ y.mT @ x,
        ]
        for program in programs:
            assert seen(program) == []


def test_two_attentions_of_one_product() -> None:
    """Co-attention: each side attends to the other by the same scores."""
    x, y = torch.randn(B, Q, D), torch.randn(B, K, D)
    made: list[Any] = []

    def both() -> None:
        scores = x @ y.mT
        made.extend((scores.softmax(2), scores.softmax(1)))
        made[0] @ y
        made[1].mT @ x

    first, second = seen(both)
    exact(first, made[0][:, None], y[:, None])
    exact(second, made[1].mT[:, None], x[:, None])


# What is promised to the program.


def test_nothing_is_kept(qkv: tuple[torch.Tensor, ...]) -> None:
    """Tensors end when the program lets them go, however long the chain of products was."""
    q, k, v = qkv
    alive: list[weakref.ref[torch.Tensor]] = []
    made: list[torch.Tensor] = []

    def squares() -> list[torch.Tensor]:
        return [
            each
            for each in gc.get_objects()
            if type(each) is torch.Tensor and not each.is_nested and each.shape == (6, 6)
        ]

    others = squares()  # of other tests; they are held, so that no new tensor has an id of theirs
    before = {id(each) for each in others}

    def program() -> None:
        scores = q @ k.mT / 2
        weights = scores.softmax(-1)
        alive.extend(weakref.ref(each) for each in (scores, weights))
        weights @ v
        del scores, weights
        assert [each() for each in alive] == [None, None]
        x = torch.randn(37, 37)  # a shape that no other test leaves behind
        for _ in range(20):
            x = x @ x * 0.1
            alive.append(weakref.ref(x))
        gc.collect()
        made.extend(each for each in squares() if id(each) not in before)

    calls = []
    with watching(lambda call: calls.append(call.shape)):
        program()
    assert calls == [(B, H, Q, K)]
    assert len({each.data_ptr() for each in made}) < 5


def test_queries_that_are_the_keys(qkv: tuple[torch.Tensor, ...]) -> None:
    """A tensor that was followed before is both factors, itself or by two products."""
    x, wide = qkv[0] * 1.5, torch.randn(D, D)
    right(one(lambda: (x * 0.5 @ x.mT).softmax(-1) @ x))

    def projected() -> None:
        y = x * 0.8
        ((y @ wide) @ (y @ wide.T).mT / 2).softmax(-1) @ y

    call = one(projected)
    assert call.shape == (B, H, Q, Q)
    assert call.weights is not None
    assert torch.allclose(recomputed(call), call.weights.double(), atol=1e-6)


def test_scores_that_are_far_below_by_themselves_are_not_masked(qkv: tuple[torch.Tensor, ...]) -> None:
    q, k, v = qkv
    with watch() as calls:
        (q * 2e4 @ k.mT / 2).softmax(-1) @ v
    assert [(row.mask, row.findings) for row in calls] == [("full", ())]
