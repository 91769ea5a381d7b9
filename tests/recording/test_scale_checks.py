"""The scale of an attention: that of a head's width, once, and not of the model's, or the wrong way round."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from attncli import watch

B, H, T, D = 2, 4, 6, 16
ROOT = D**-0.5
sdpa = F.scaled_dot_product_attention


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


q, k, v = drawn(B, H, T, D), drawn(B, H, T, D) + 1, drawn(B, H, T, D) + 2
GAIN = drawn(D, D)[0].abs() + 0.5
W, DOWN, UP = drawn(D, D), drawn(D, 2), drawn(2, D)
COS, SIN = drawn(1, 1, T, D), drawn(1, 1, T, D) + 1
LEARNED, OF_HEADS = nn.Parameter(torch.tensor(ROOT)), nn.Parameter(torch.full((H, 1, 1), ROOT))


def rotary(x: Tensor) -> Tensor:
    return x * COS + torch.cat((-x[..., D // 2 :], x[..., : D // 2]), -1) * SIN


def split(flat: Tensor) -> Tensor:
    return flat.view(B, T, H, D).transpose(1, 2)


def projected() -> Iterator[Tensor]:
    flat = F.linear(drawn(B, T, D), drawn(3 * H * D, D) / 100, drawn(3 * H * D) / 100)
    return (each.unflatten(-1, (H, D)).transpose(1, 2) for each in flat.chunk(3, -1))


def by_hand(scale: float, q: Tensor = q, k: Tensor = k) -> Tensor:
    return (q @ k.mT * scale).softmax(-1) @ v


def found(program: Callable[[], object]) -> list[tuple[str, str]]:
    with watch() as calls:
        program()
    assert calls.calls == 1
    return [(one.code, one.severity) for one in calls.findings]


TWICE = {
    "a division": lambda: sdpa(q / D**0.5, k, v),
    "in place": lambda: sdpa(q.clone().__itruediv__(D**0.5), k, v),
    "before heads are split": lambda: sdpa(split(F.linear(drawn(B, T, H * D), drawn(H * D, H * D)) * ROOT), k, v),
    "before rotary": lambda: sdpa(rotary(q * ROOT), rotary(k), v),
    "a scale of the call": lambda: sdpa(q * ROOT, k, v, scale=ROOT),
}
WRONG = {
    "twice by hand": lambda: by_hand(ROOT, q * ROOT),
    "the width of the model, before the call": lambda: sdpa(q * (H * D) ** -0.5, k, v, scale=1.0),
    "the width of the model": lambda: sdpa(q, k, v, scale=(H * D) ** -0.5),
    "multiplied": lambda: sdpa(q, k, v, scale=D**0.5), "multiplied by hand": lambda: by_hand(D**0.5),
    "multiplied, of a projection": lambda: sdpa(*projected(), scale=D**0.5),
}  # fmt: skip
NOTED = {
    "none": lambda: sdpa(q, k, v, scale=1.0),
    "none by hand": lambda: (rotary(q) @ rotary(k).mT).softmax(-1) @ v,
    "√d of what is normalised": lambda: sdpa(F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, scale=D**0.5),
    "√d with learned factors, as in nGPT": lambda: by_hand(D**0.5, *(F.normalize(x, dim=-1) * GAIN for x in (q, k))),
    "the root of another width": lambda: sdpa(q, k, v, scale=(2 * D) ** -0.5),
    "another number by hand": lambda: by_hand(0.21),
}
RIGHT = {
    "as it is": lambda: sdpa(q, k, v),
    "1/d of muP": lambda: sdpa(q, k, v, scale=1 / D),
    "before rotary, and not again": lambda: by_hand(1.0, rotary(q * ROOT), rotary(k)),
    "half of it on each side": lambda: sdpa(q * D**-0.25, k * D**-0.25, v, scale=1.0),
    "taken back": lambda: sdpa(q * D**0.5, k, v),
    "learned": lambda: by_hand(1.0, q * LEARNED),
    "learned, of the scores": lambda: (q @ k.mT * torch.nn.Parameter(torch.tensor(0.21))).softmax(-1) @ v,
    "learned for each head": lambda: sdpa(q * OF_HEADS, k, v, scale=1.0),
    "a norm afterwards": lambda: sdpa(F.layer_norm(q * ROOT, (D,)), k, v),
    "before the projection": lambda: sdpa(F.linear(q * ROOT, W), k, v),
    "an adapter": lambda: by_hand(ROOT, F.linear(q, W) + F.linear(F.linear(q, DOWN.T), UP.T) * ROOT),
    "an adapter by products": lambda: sdpa(q @ DOWN @ UP * ROOT + q @ W, k, v),
    "a multiplier before the call": lambda: sdpa(q * H**-0.5, k, v),
    "1/d where it is the root of the model's width": lambda: sdpa(q[..., :4], k[..., :4], v, scale=1 / 4),
    "a multiplier by hand": lambda: (q @ k.mT * ROOT * H**-0.5).softmax(-1) @ v,
    "one number a head": lambda: sdpa(q[..., :1], k[..., :1], v, scale=1.0),
}


@pytest.mark.parametrize("program", [*TWICE.values(), *NOTED.values()], ids=[*TWICE, *NOTED])
def test_a_scale_that_may_be_meant(program: Callable[[], object]) -> None:
    assert found(program) == [("unscaled", "note")]


@pytest.mark.parametrize("program", WRONG.values(), ids=WRONG)
def test_another_scale_than_that_of_a_head(program: Callable[[], object]) -> None:
    assert found(program) == [("unscaled", "error")]


@pytest.mark.parametrize("program", RIGHT.values(), ids=RIGHT)
def test_a_scale_that_is_right(program: Callable[[], object]) -> None:
    assert found(program) == []
