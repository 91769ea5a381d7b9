"""Heads that a view alone makes of a projection, or puts together: in every style, beside views that are right."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention

import attncli

B, H, T, D = 2, 4, 6, 8
W = H * D
sdpa = F.scaled_dot_product_attention


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def projected(rows: int = B, positions: int = T, width: int = W) -> list[Tensor]:
    """Queries, keys and values as linear layers give them, `[B, T, H·D]`."""
    x = drawn(rows, positions, width)
    return [F.linear(x, drawn(width, width) * (i + 1) / width, drawn(width)) for i in range(3)]


def right(x: Tensor) -> Tensor:
    return x.view(*x.shape[:2], -1, D).transpose(1, 2)


def folded(x: Tensor) -> Tensor:
    return right(x).reshape(-1, T, D)


def by_bmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.bmm((torch.bmm(q, k.transpose(1, 2)) / D**0.5).softmax(-1), v)


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q * D**-0.5 @ k.mT).softmax(-1) @ v


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (torch.einsum("bhid,bhjd->bhij", q, k) / D**0.5).softmax(-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def flex(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it runs slowly where it is not compiled
        return flex_attention(q, k, v)  # type: ignore[return-value]


def split(make: Callable[[Tensor], Tensor], attend: Callable[..., Tensor] = sdpa) -> Callable[[], object]:
    return lambda: attend(*map(make, projected()))


def merged(make: Callable[[Tensor], Tensor], attend: Callable[..., Tensor] = sdpa) -> Callable[[], object]:
    return lambda: make(attend(*map(right, projected())))


def learned() -> Tensor:
    """Latents that are learned are what they are, however they are viewed."""
    latents = nn.Parameter(drawn(1, T, W))
    _, k, v = map(right, projected())
    return sdpa(latents.view(1, H, T, D).expand(B, -1, -1, -1), k, v)


WRONG = {
    "view": split(lambda x: x.view(B, H, T, D)),
    "by hand": split(lambda x: x.view(B, H, T, D), by_hand),
    "by einsum": split(lambda x: x.view(B, H, T, D), by_einsum),
    "flex": split(lambda x: x.view(B, H, T, D), flex),
    "keys alone": lambda: sdpa(right(projected()[0]), projected()[1].view(B, H, T, D), right(projected()[2])),
    "output": merged(lambda y: y.reshape(B, T, W)),
    "output, contiguous": merged(lambda y: y.contiguous().view(B, T, W)),
    "output of all positions, by hand": merged(lambda y: y.reshape(-1, W), by_hand),
    "output of the batch": lambda: by_bmm(*map(folded, projected())).view(B, T, W),
    "output of flex": merged(lambda y: y.reshape(B, T, W), flex),
    "values alone": lambda: by_hand(*map(right, projected()[:2]), projected()[2].view(B, H, T, D)),
}
RIGHT = {
    "view and transpose": split(right),
    "view and permute": split(lambda x: x.view(B, T, H, D).permute(0, 2, 1, 3).contiguous(), by_hand),
    "in the batch": lambda: by_bmm(*map(folded, projected())).view(B, H, T, D).transpose(1, 2).reshape(B, T, W),
    "fairseq": lambda: by_bmm(*(x.transpose(0, 1).contiguous().view(T, B * H, D).transpose(0, 1) for x in projected())),
    "output": merged(lambda y: y.transpose(1, 2).reshape(B, T, W)),
    "output, contiguous": merged(lambda y: y.transpose(1, 2).contiguous().view(B * T, W), by_hand),
    "one head": lambda: sdpa(*(x[:, None] for x in projected())).view(B, T, W),
    "attention over heads": lambda: sdpa(*(x.view(B, T, H, D) for x in projected())),
    "learned": learned,
    "as many positions as heads": lambda: sdpa(*(x.view(B, H, H, D) for x in projected(positions=H))),
    "windows": lambda: sdpa(*(x.view(B, 2, T // 2, W) for x in projected())).reshape(B, T, W),
}


@pytest.mark.parametrize("program", WRONG.values(), ids=WRONG)
def test_a_view_that_mixes_positions(program: Callable[[], object]) -> None:
    with attncli.watch() as calls, torch.no_grad():
        program()
    assert {(one.code, one.severity) for one in calls.findings} == {("heads", "error")}


@pytest.mark.parametrize("program", RIGHT.values(), ids=RIGHT)
def test_a_view_that_does_not(program: Callable[[], object]) -> None:
    with attncli.watch() as calls:
        program()
    assert calls
    assert calls.findings == ()


def test_the_line_that_puts_them_together_is_named() -> None:
    with attncli.watch() as calls:
        y = sdpa(*map(right, projected()))
        y.reshape(B, T, W)
    ((finding,),) = [row.findings for row in calls]
    line = test_the_line_that_puts_them_together_is_named.__code__.co_firstlineno + 3
    assert finding.message.endswith(f"[2, 4, 6, 8] as [2, 6, 32] at tests/recording/test_heads.py:{line}")
