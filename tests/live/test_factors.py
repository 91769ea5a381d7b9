"""Hand-written attention whose queries, keys or scores are multiplied before: they are read as what they are."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import attncli

B, H, T, D = 2, 4, 6, 8
FUTURE = torch.ones(T, T, dtype=torch.bool).triu(1)
WORDS = (torch.arange(T) < torch.tensor([[T], [4]]))[:, None, :, None].float()


def normed(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def per_position(x: Tensor) -> Tensor:
    return x * (1 + torch.arange(x.shape[-2]).float())[:, None]


def per_head(x: Tensor) -> Tensor:
    return x * torch.linspace(0.5, 2, x.shape[1])[:, None, None]


BEFORE: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "both normed": lambda q, k: (normed(q), normed(k)),
    "a temperature of each position": lambda q, k: (per_position(q), k),
    "a temperature of each head": lambda q, k: (per_head(q), per_head(k)),
    "keys of padding are 0": lambda q, k: (q, k * WORDS),
    "shared heads, normed": lambda q, k: (normed(q), normed(k[:, :2]).repeat_interleave(2, 1)),
}


@pytest.mark.parametrize("way", BEFORE)
@pytest.mark.parametrize("is_wrong", [False, True], ids=["right", "wrong"])
def test_factors_before_the_product(way: str, is_wrong: bool) -> None:
    q, k, v = torch.randn(3, B, H, T, D)
    future = torch.ones(T, T, dtype=torch.bool).triu(2) if is_wrong else FUTURE
    with attncli.watch() as calls:
        one, two = BEFORE[way](q, k)
        scores = one @ two.transpose(-2, -1) / D**0.5
        scores.masked_fill(future, -torch.inf).softmax(-1) @ v
    (row,) = calls
    assert (row.mask, [int(size.most) for size in row.sizes]) == ("band(5,1)" if is_wrong else "causal", [B, H, T, T])
    if is_wrong:
        with pytest.raises(AssertionError, match="attends to the future"):
            calls.check("causal")
    else:
        calls.check("causal")


@pytest.mark.parametrize("is_masked_first", [False, True])
def test_a_factor_of_each_head_hides_nothing(is_masked_first: bool) -> None:
    q, k, v = torch.nn.functional.normalize(torch.randn(3, B, H, T, D), dim=-1)
    factor = torch.linspace(5, 20, H)[:, None, None]
    with attncli.watch() as calls:
        scores = q @ k.transpose(-2, -1)
        scores = scores.masked_fill(FUTURE, -torch.inf) * factor if is_masked_first else scores * factor
        scores.masked_fill(FUTURE, -torch.inf).softmax(-1) @ v
    assert calls[0].mask == "causal"
    calls.check("causal")


def test_padding_of_a_target_is_not_that_of_its_source() -> None:
    """Both are embedded first, are as long, and the source has no padding."""
    source, target = (torch.nn.Embedding(10, D, padding_idx=0) for _ in range(2))
    ids = torch.tensor([[3, 4, 0, 0], [7, 8, 2, 1]])
    attend = torch.nn.functional.scaled_dot_product_attention
    with attncli.watch() as calls:
        x, y = source(torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]))[:, None], target(ids)[:, None]
        encoded = attend(x, x, x)
        y = attend(y, y, y, attn_mask=~FUTURE[:4, :4] & (ids != 0)[:, None, None])
        attend(y, encoded, encoded)
    assert [one for one in calls.findings if one.severity == "error"] == []
