"""Masks of the windows of shifted pictures, in the order in which windows are put into the batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import attncli

B, SIZE, SIDE, C, H = 3, 12, 4, 16, 2
N, ALONG = SIDE * SIDE, SIZE // SIDE


def partitioned(x: Tensor) -> Tensor:
    """Swin's own: window_partition."""
    rows, height, width, channels = x.shape
    x = x.view(rows, height // SIDE, SIDE, width // SIDE, SIDE, channels)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, SIDE, SIDE, channels).view(-1, N, channels)


def at_once(x: Tensor) -> Tensor:
    """torchvision's: a reshape."""
    x = x.view(len(x), ALONG, SIDE, ALONG, SIDE, x.shape[-1])
    return x.permute(0, 1, 3, 2, 4, 5).reshape(len(x) * ALONG**2, N, x.shape[-1])


def windows_first(x: Tensor) -> Tensor:
    """The other order: the same window of all pictures, then the next one."""
    x = x.view(len(x), ALONG, SIDE, ALONG, SIDE, x.shape[-1])
    return x.permute(1, 3, 0, 2, 4, 5).reshape(-1, N, x.shape[-1])


def mask(fill: float = -100.0) -> Tensor:
    """Swin's mask of each window, [windows, N, N]."""
    regions = torch.zeros(1, SIZE, SIZE, 1)
    parts = slice(0, -SIDE), slice(-SIDE, -2), slice(-2, None)
    for i, (rows, columns) in enumerate((one, other) for one in parts for other in parts):
        regions[:, rows, columns] = i
    flat = partitioned(regions).squeeze(-1)
    return torch.zeros(ALONG**2, N, N).masked_fill(flat[:, None] != flat[:, :, None], fill)


def heads(x: Tensor) -> list[Tensor]:
    """Queries, keys and values."""
    return [F.linear(x, torch.eye(C) * by).view(len(x), N, H, -1).transpose(1, 2) for by in (1.1, 1.2, 1.3)]


def by_hand(x: Tensor, own: Tensor) -> Tensor:
    q, k, v = heads(x)
    return (q * q.shape[-1] ** -0.5 @ k.mT + own[:, None]).softmax(-1) @ v


def by_function(x: Tensor, own: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(*heads(x), attn_mask=own[:, None])


def program(make: Callable[[Tensor], Tensor], attend: Callable[..., Tensor], own: Tensor, pictures: int = B) -> object:
    x = torch.randn(pictures, SIZE, SIZE, C, generator=torch.Generator().manual_seed(0))
    return attend(make(torch.roll(x, (-2, -2), dims=(1, 2))), own)


def found(make: Callable[[Tensor], Tensor], attend: Callable[..., Tensor], own: Tensor, pictures: int = B) -> set[str]:
    with attncli.watch() as calls:
        program(make, attend, own, pictures)
    assert calls
    return {one.code for one in calls.findings if one.severity == "error"}


@pytest.mark.parametrize("pictures", [2, 4])
@pytest.mark.parametrize("attend", [by_hand, by_function])
@pytest.mark.parametrize("make", [partitioned, at_once])
def test_the_mask_counts_windows_as_the_batch_does(
    make: Callable[[Tensor], Tensor], attend: Callable[..., Tensor], pictures: int
) -> None:
    assert found(make, attend, mask().repeat(pictures, 1, 1), pictures) == set()
    assert found(make, attend, mask().repeat_interleave(pictures, 0), pictures) == {"batch"}


@pytest.mark.parametrize("pictures", [1, 2, 3, 4, 9])
def test_windows_may_come_first(pictures: int) -> None:
    assert found(windows_first, by_hand, mask().repeat_interleave(pictures, 0), pictures) == set()


def test_sizes_that_say_nothing() -> None:
    """As many pictures as windows along a side: either order is possible."""
    assert found(partitioned, by_hand, mask().repeat_interleave(ALONG, 0), ALONG) == set()
