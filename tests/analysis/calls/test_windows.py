"""Masks of the windows of shifted pictures, in the order in which windows are put into the batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import attncli

SIZE, SIDE, C, H = 12, 4, 16, 2
N, ALONG = SIDE * SIDE, SIZE // SIDE


def partitioned(x: Tensor) -> Tensor:
    """Swin's own: window_partition."""
    rows, height, width, channels = x.shape
    x = x.view(rows, height // SIDE, SIDE, width // SIDE, SIDE, channels)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, SIDE, SIDE, channels).view(-1, N, channels)


def windows_first(x: Tensor) -> Tensor:
    """The other order: the same window of all pictures, then the next one."""
    x = x.view(len(x), ALONG, SIDE, ALONG, SIDE, x.shape[-1])
    return x.permute(1, 3, 0, 2, 4, 5).reshape(-1, N, x.shape[-1])


def mask() -> Tensor:
    """Swin's mask of each window, [windows, N, N]."""
    regions = torch.zeros(1, SIZE, SIZE, 1)
    parts = slice(0, -SIDE), slice(-SIDE, -2), slice(-2, None)
    for i, (rows, columns) in enumerate((one, other) for one in parts for other in parts):
        regions[:, rows, columns] = i
    flat = partitioned(regions).squeeze(-1)
    return torch.zeros(ALONG**2, N, N).masked_fill(flat[:, None] != flat[:, :, None], -100.0)


def found(make: Callable[[Tensor], Tensor], own: Tensor, pictures: int) -> set[str]:
    """The errors, written by hand and by torch's function."""
    with attncli.watch() as calls:
        x = make(torch.roll(torch.randn(pictures, SIZE, SIZE, C), (-2, -2), dims=(1, 2)))
        q, k, v = (F.linear(x, torch.eye(C) * by).view(len(x), N, H, -1).transpose(1, 2) for by in (1.1, 1.2, 1.3))
        (q * q.shape[-1] ** -0.5 @ k.mT + own[:, None]).softmax(-1) @ v
        F.scaled_dot_product_attention(q, k, v, attn_mask=own[:, None])
    assert calls.calls == 2
    return {one.code for one in calls.findings if one.severity == "error"}


@pytest.mark.parametrize("pictures", [2, 4])
def test_the_mask_counts_windows_as_the_batch_does(pictures: int) -> None:
    assert found(partitioned, mask().repeat(pictures, 1, 1), pictures) == set()
    assert found(partitioned, mask().repeat_interleave(pictures, 0), pictures) == {"batch"}


@pytest.mark.parametrize("pictures", [1, 3, 4])
def test_windows_may_come_first(pictures: int) -> None:
    assert found(windows_first, mask().repeat_interleave(pictures, 0), pictures) == set()
    if pictures == ALONG:  # as many pictures as windows along a side: either order is possible
        assert found(partitioned, mask().repeat_interleave(pictures, 0), pictures) == set()
