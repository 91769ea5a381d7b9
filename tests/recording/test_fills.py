"""A fill is judged by what it does: what takes nearly all weight of a key masks it, however it is laid on."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import attncli
from attncli.analysis.calls.calls import Calls
from attncli.analysis.calls.expectations import UnexpectedError

HEADS, T, WIDTH = 4, 16, 8
FUTURE = torch.ones(T, T, dtype=torch.bool).triu(1)
BIAS = 2 * torch.randn(1, HEADS, T, T, generator=torch.Generator().manual_seed(0))


def fused(bias: Tensor) -> Callable[[float], Tensor]:
    def attend(fill: float) -> Tensor:
        q, k, v = torch.randn(3, 2, HEADS, T, WIDTH)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias + torch.zeros(T, T).masked_fill(FUTURE, fill))

    return attend


def module(fill: float) -> Tensor:
    x, attention = torch.randn(2, T, 32), nn.MultiheadAttention(32, HEADS, batch_first=True)
    output: Tensor = attention(x, x, x, attn_mask=torch.zeros(T, T).masked_fill(FUTURE, fill))[0]
    return output


def written(laid: Callable[[Tensor, float], Tensor]) -> Callable[[float], Tensor]:
    def attend(fill: float) -> Tensor:
        q, k, v = torch.randn(3, 2, HEADS, T, WIDTH)
        return laid(q @ k.transpose(-2, -1) / math.sqrt(WIDTH), fill).softmax(-1) @ v

    return attend


WAYS: dict[str, Callable[[float], Tensor]] = {
    "sdpa, into a bias": fused(BIAS),
    "nn.MultiheadAttention": module,
    "added after a bias": written(lambda scores, fill: scores + BIAS + torch.zeros(T, T).masked_fill(FUTURE, fill)),
    "masked_fill": written(lambda scores, fill: scores.masked_fill(FUTURE, fill)),
    "where": written(lambda scores, fill: torch.where(FUTURE, torch.tensor(fill), scores)),
}


def watched(attend: Callable[[float], Tensor], fill: float) -> Calls:
    torch.manual_seed(0)
    with attncli.watch() as calls:
        attend(fill)
    return calls


@pytest.mark.parametrize("way", WAYS)
def test_what_takes_nearly_all_weight_masks_and_what_leaves_some_does_not(way: str) -> None:
    for fill in (-50.0, -5000.0, -1e9):
        calls = watched(WAYS[way], fill)
        assert calls[0].mask.removesuffix(" + bias") == "causal"
        assert calls.findings == ()
        calls.check("causal")
        with pytest.raises(UnexpectedError, match="misses an allowed key"):
            calls.check("full")
    with pytest.raises(UnexpectedError, match="attends to the future"):
        watched(WAYS[way], -5.0).check("causal")


def test_a_bias_that_grows_with_the_distance_is_none() -> None:
    """ALiBi takes as much from far keys, by small steps."""
    distance = (torch.arange(T)[:, None] - torch.arange(T)).abs()
    calls = watched(fused(-distance * torch.tensor([2.0, 0.5, 0.25, 0.125])[:, None, None]), 0.0)
    assert calls[0].mask == "full + bias"
    calls.check("full")


def test_two_fills_added_stay_finite() -> None:
    """The prior of DALL-E 2 in diffusers: -10000 for later tokens, and once more for padding."""
    padding = torch.zeros(2, 1, 1, T).masked_fill((torch.arange(T) >= torch.tensor([[T], [10]]))[:, None, None], -1e4)
    calls = watched(fused(padding), -1e4)
    assert calls[0].mask == "causal & pad (row 1 of 2)"
    assert calls.findings == ()
