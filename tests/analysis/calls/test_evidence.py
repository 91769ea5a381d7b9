"""Masks that lie on the heads in place of the batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import attncli

B, H, T, D = 4, 4, 8, 8
LENGTHS = torch.tensor([8, 6, 5, 3])
REAL = torch.arange(T) < LENGTHS[:, None]
CAUSAL = torch.ones(T, T, dtype=torch.bool).tril()
DISTANCE = torch.arange(T) - torch.arange(T)[:, None]
sdpa = F.scaled_dot_product_attention


def drawn(rows: int = B, heads: int = H) -> Tensor:
    return torch.randn(rows, heads, T, D, generator=torch.Generator().manual_seed(rows + heads))


def masked(mask: Tensor, rows: int = B) -> Callable[[], object]:
    return lambda: sdpa(drawn(rows), drawn(rows), drawn(rows), attn_mask=mask)


def of_module(mask: Tensor, rows: int) -> Callable[[], object]:
    model, x = nn.MultiheadAttention(H * D, H, batch_first=True), torch.randn(rows, T, H * D)
    return lambda: model(x, x, x, attn_mask=mask)


PADDING = ~REAL[:3, None, :].expand(-1, T, -1)
WRONG = {
    "along the heads": (masked(REAL[None, :, None, :]), "batch"),
    "along the heads, and causal": (masked(CAUSAL & REAL[None, :, None, :]), "batch"),
    "along the heads, on the left": (masked(REAL.flip(1)[None, :, None, :]), "batch"),
    "repeated, and causal": (of_module((PADDING | ~CAUSAL).repeat(H, 1, 1), 3), "batch"),
}
NOTED = {
    "heads with masks of their own": (masked(torch.stack([CAUSAL, CAUSAL, CAUSAL, CAUSAL.triu(-2)])), "varies"),
    "a window that is padded": (
        masked((torch.arange(32) < 20).view(1, 4, 1, 8) | torch.eye(T, dtype=torch.bool)),
        "varies",
    ),
    "masks of each head in each row": (
        of_module(torch.stack([~CAUSAL, ~CAUSAL, ~CAUSAL, ~CAUSAL.triu(-2)]).repeat(3, 1, 1), 3),
        "varies",
    ),
}
RIGHT = {
    "along the batch": masked(REAL[:, None, None, :]),
    "repeated one by one": of_module(PADDING.repeat_interleave(H, 0), 3),
    "a bias of distance": masked(torch.zeros(T, T).masked_fill(~CAUSAL, float("-inf")) - DISTANCE.abs()),
}


def found(program: Callable[[], object]) -> list[tuple[str, str]]:
    with attncli.watch() as calls:
        program()
    assert calls
    return [(one.code, one.severity) for one in calls.findings]


@pytest.mark.parametrize(("program", "code"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_an_error(program: Callable[[], object], code: str) -> None:
    assert (code, "error") in found(program)


@pytest.mark.parametrize(("program", "code"), NOTED.values(), ids=NOTED)
def test_what_may_be_meant_is_a_note(program: Callable[[], object], code: str) -> None:
    assert {*found(program)} == {(code, "note")}


@pytest.mark.parametrize("program", RIGHT.values(), ids=RIGHT)
def test_what_is_right_is_not_said(program: Callable[[], object]) -> None:
    assert found(program) == []
