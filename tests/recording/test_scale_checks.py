"""The scale of an attention: that of a head's width, and not of the model's, or the wrong way round."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from attncli.masks.findings import Finding
from attncli.recording.call import AttentionCall
from attncli.recording.watch import watching

B, H, T, D = 2, 4, 6, 16
ROOT = D**-0.5
sdpa = F.scaled_dot_product_attention


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


q, k, v = drawn(B, H, T, D), drawn(B, H, T, D) + 1, drawn(B, H, T, D) + 2
GAIN = drawn(D, D)[0].abs() + 0.5


def projected() -> Iterator[Tensor]:
    """Queries, keys and values that are small, and views of one projection."""
    flat = F.linear(drawn(B, T, D), drawn(3 * H * D, D) / 100, drawn(3 * H * D) / 100)
    return (each.unflatten(-1, (H, D)).transpose(1, 2) for each in flat.chunk(3, -1))


def by_hand(scale: float) -> Tensor:
    return (q @ k.mT * scale).softmax(-1) @ v


def found(program: Callable[[], object]) -> tuple[Finding, ...]:
    """What is found in the one call of a program."""
    calls: list[AttentionCall] = []
    with watching(calls.append):
        program()
    (call,) = calls
    return call.findings


WRONG = {
    "the width of the model": lambda: sdpa(q, k, v, scale=(H * D) ** -0.5),
    "of grouped heads": lambda: sdpa(q, k[:, :2], v[:, :2], scale=(H * D) ** -0.5, enable_gqa=True),
    "by hand": lambda: by_hand((H * D) ** -0.5),
    "multiplied": lambda: sdpa(q, k, v, scale=D**0.5),
    "multiplied by hand": lambda: by_hand(D**0.5),
    "multiplied, of a projection": lambda: sdpa(*projected(), scale=D**0.5),
}
NOTED = {
    "√d of what is normalised": lambda: sdpa(F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, scale=D**0.5),
    "√d with learned factors, as in nGPT": lambda: sdpa(
        *(F.normalize(x, dim=-1) * GAIN for x in (q, k)), v, scale=D**0.5
    ),
}
RIGHT = {
    "as it is": lambda: sdpa(q, k, v),
    "none": lambda: sdpa(q, k, v, scale=1.0),
    "before, and not again": lambda: sdpa(q * ROOT, k, v, scale=1.0),
    "1/d of muP": lambda: sdpa(q, k, v, scale=1 / D),
    "1/d of muP, half of it before": lambda: sdpa(q * ROOT, k, v),
    "1/d where it is the root of the model's width": lambda: sdpa(q[..., :4], k[..., :4], v, scale=1 / 4),
    "a multiplier by hand": lambda: (q @ k.mT * ROOT * H**-0.5).softmax(-1) @ v,
    "one number a head": lambda: sdpa(q[..., :1], k[..., :1], v, scale=1.0),
}


@pytest.mark.parametrize("program", WRONG.values(), ids=WRONG)
def test_another_scale_than_that_of_a_head(program: Callable[[], object]) -> None:
    (finding,) = found(program)
    assert (finding.code, finding.severity) == ("unscaled", "error")


@pytest.mark.parametrize("program", NOTED.values(), ids=NOTED)
def test_a_scale_that_may_be_meant(program: Callable[[], object]) -> None:
    (finding,) = found(program)
    assert (finding.code, finding.severity) == ("unscaled", "note")


@pytest.mark.parametrize("program", RIGHT.values(), ids=RIGHT)
def test_a_scale_that_is_right(program: Callable[[], object]) -> None:
    assert found(program) == ()
