"""The scale of functions that scale by themselves: said to be 1, or laid on queries that were scaled before."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention

from attncli.masks.findings import Finding
from attncli.recording.call import AttentionCall
from attncli.recording.watch import watching

B, H, T, D = 2, 4, 6, 16
ROOT = D**-0.5
sdpa = F.scaled_dot_product_attention


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


q, k, v = drawn(B, H, T, D), drawn(B, H, T, D) + 1, drawn(B, H, T, D) + 2
W, DOWN, UP = drawn(D, D), drawn(D, 2), drawn(2, D)
COS, SIN = drawn(1, 1, T, D), drawn(1, 1, T, D) + 1
LEARNED = nn.Parameter(torch.tensor(ROOT))
GAIN = nn.Parameter(torch.full((H, 1, 1), ROOT))


def rotary(x: Tensor) -> Tensor:
    return x * COS + torch.cat((-x[..., D // 2 :], x[..., : D // 2]), -1) * SIN


def in_place(x: Tensor) -> Tensor:
    x = x.clone()
    x /= D**0.5
    return x


def by_einsum(scale: float) -> Tensor:
    of_rows = [each.transpose(1, 2) for each in (q, k, v)]
    weights = (torch.einsum("bihd,bjhd->bhij", *of_rows[:2]) * scale).softmax(-1)
    return torch.einsum("bhij,bjhd->bihd", weights, of_rows[2])


def projected() -> Iterator[Tensor]:
    """Queries, keys and values that are small, and views of one projection."""
    flat = F.linear(drawn(B, T, D), drawn(3 * H * D, D) / 100, drawn(3 * H * D) / 100)
    return (each.unflatten(-1, (H, D)).transpose(1, 2) for each in flat.chunk(3, -1))


def flex(q: Tensor, k: Tensor, v: Tensor, **options: float) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it runs slowly where it is not compiled
        return flex_attention(q, k, v, **options)  # type: ignore[call-overload]


def found(program: Callable[[], object]) -> tuple[Finding, ...]:
    """What is found in the one call of a program."""
    calls: list[AttentionCall] = []
    with watching(calls.append):
        program()
    found = calls if len(calls) == 1 else [call for call in calls if call.api != "softmax"]  # flex runs one inside
    (call,) = found
    return call.findings


TWICE = {
    "a number": lambda: sdpa(q * ROOT, k, v),
    "a division": lambda: sdpa(q / D**0.5, k, v),
    "in place": lambda: sdpa(in_place(q), k, v),
    "keys": lambda: sdpa(q, k * ROOT, v),
    "of a product": lambda: sdpa(q @ W * ROOT, k, v),
    "after rotary": lambda: sdpa(rotary(q) * ROOT, rotary(k), v),
    "a scale that is said": lambda: sdpa(q * ROOT, k, v, scale=ROOT),
    "flex": lambda: flex(q * ROOT, k, v),
}
WRONG = {
    "the width of the model": lambda: sdpa(q, k, v, scale=(H * D) ** -0.5),
    "of grouped heads": lambda: sdpa(q, k[:, :2], v[:, :2], scale=(H * D) ** -0.5, enable_gqa=True),
    "before the call": lambda: sdpa(q * (H * D) ** -0.5, k, v, scale=1.0),
    "flex": lambda: flex(q, k, v, scale=(H * D) ** -0.5),
    "by hand": lambda: (q @ k.mT / (H * D) ** 0.5).softmax(-1) @ v,
    "by einsum": lambda: by_einsum((H * D) ** -0.5),
    "multiplied": lambda: sdpa(q, k, v, scale=D**0.5),
    "multiplied by hand": lambda: (q @ k.mT * D**0.5).softmax(-1) @ v,
    "multiplied, of a projection": lambda: sdpa(*projected(), scale=D**0.5),
}
NEVER = {
    "said": lambda: sdpa(q, k, v, scale=1.0),
    "a whole number": lambda: sdpa(q, k, v, scale=1),
    "after rotary": lambda: sdpa(rotary(q), rotary(k), v, scale=1.0),
    "√d of what is normalised": lambda: sdpa(F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, scale=D**0.5),
    "√d with learned factors, as in nGPT": lambda: sdpa(
        *(F.normalize(x, dim=-1) * (W[0].abs() + 0.5) for x in (q, k)), v, scale=D**0.5
    ),
}
RIGHT = {
    "as it is": lambda: sdpa(q, k, v),
    "before, and not again": lambda: sdpa(q * ROOT, k, v, scale=1.0),
    "before rotary, and not again": lambda: sdpa(rotary(q * ROOT), rotary(k), v, scale=1.0),
    "half of it on each side": lambda: sdpa(q * D**-0.25, k * D**-0.25, v, scale=1.0),
    "taken back": lambda: sdpa(q * D**0.5, k, v),
    "1/d of muP": lambda: sdpa(q, k, v, scale=1 / D),
    "1/d of muP before": lambda: sdpa(q * (1 / D), k, v, scale=1.0),
    "1/d where it is the root of the model's width": lambda: sdpa(q[..., :4], k[..., :4], v, scale=1 / 4),
    "another number": lambda: sdpa(q * 0.3, k, v),
    "learned": lambda: sdpa(q * LEARNED, k, v),
    "learned for each head": lambda: sdpa(q * GAIN, k, v),
    "a norm afterwards": lambda: sdpa(F.layer_norm(q * ROOT, (D,)), k, v),
    "a norm by hand afterwards": lambda: sdpa((lambda x: x / x.norm(dim=-1, keepdim=True))(q * ROOT), k, v),
    "before the projection": lambda: sdpa(F.linear(q * ROOT, W), k, v),
    "an adapter": lambda: sdpa(F.linear(q, W) + F.linear(F.linear(q, DOWN.T), UP.T) * ROOT, k, v),
    "an adapter by products": lambda: sdpa(q @ DOWN @ UP * ROOT + q @ W, k, v),
    "rotary with a factor": lambda: sdpa(q * (COS * 1.2), k, v),
    "a multiplier before the call": lambda: sdpa(q * H**-0.5, k, v),
    "a multiplier by hand": lambda: (q @ k.mT * ROOT * H**-0.5).softmax(-1) @ v,
    "one number a head": lambda: sdpa(q[..., :1], k[..., :1], v, scale=1.0),
}


@pytest.mark.parametrize("program", TWICE.values(), ids=TWICE)
def test_two_scales(program: Callable[[], object]) -> None:
    (finding,) = found(program)
    assert (finding.code, finding.severity) == ("unscaled", "note")  # muP means it
    assert finding.message == "q·k is divided by √16 twice, before the call and in it"


@pytest.mark.parametrize("program", WRONG.values(), ids=WRONG)
def test_another_scale_than_that_of_a_head(program: Callable[[], object]) -> None:
    (finding,) = found(program)
    assert (finding.code, finding.severity) == ("unscaled", "error")


@pytest.mark.parametrize("program", NEVER.values(), ids=NEVER)
def test_no_scale_may_be_meant(program: Callable[[], object]) -> None:
    (finding,) = found(program)
    assert (finding.code, finding.severity) == ("unscaled", "note")


@pytest.mark.parametrize("program", RIGHT.values(), ids=RIGHT)
def test_one_scale(program: Callable[[], object]) -> None:
    assert found(program) == ()


def test_an_adapter_is_no_scale_of_hand_written_attention() -> None:
    calls: list[AttentionCall] = []
    with watching(calls.append):
        queries = F.linear(q, W) + F.linear(F.linear(q, DOWN.T), UP.T) * ROOT
        (queries @ k.mT * ROOT).softmax(-1) @ v
    assert [call.findings for call in calls] == [()]
