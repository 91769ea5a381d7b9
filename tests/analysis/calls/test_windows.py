"""Masks of the windows of shifted pictures, in the order in which windows are put into the batch."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import attncli

SIZE, SIDE, C, H = 12, 4, 16, 2
N, ALONG = SIDE * SIDE, SIZE // SIDE


def partitioned(x: Tensor, is_first: bool = False) -> Tensor:
    """Swin's window_partition; or the same window of all pictures first, then the next one."""
    x = x.view(len(x), ALONG, SIDE, ALONG, SIDE, x.shape[-1]).permute(*((1, 3, 0) if is_first else (0, 1, 3)), 2, 4, 5)
    return x.contiguous().view(-1, SIDE, SIDE, x.shape[-1]).view(-1, N, x.shape[-1])


def mask() -> Tensor:
    """Swin's mask of each window, [windows, N, N]."""
    side = torch.tensor([0] * (SIZE - SIDE) + [1, 1, 2, 2])
    flat = partitioned((3 * side[:, None] + side)[None, ..., None]).squeeze(-1)
    return torch.zeros(ALONG**2, N, N).masked_fill(flat[:, None] != flat[:, :, None], -100.0)


def found(own: Tensor, pictures: int, is_first: bool = False) -> set[str]:
    """The errors, written by hand and by torch's function."""
    with attncli.watch() as calls:
        x = partitioned(torch.roll(torch.randn(pictures, SIZE, SIZE, C), (-2, -2), dims=(1, 2)), is_first)
        q, k, v = (F.linear(x, torch.eye(C) * by).view(len(x), N, H, -1).transpose(1, 2) for by in (1.1, 1.2, 1.3))
        (q * q.shape[-1] ** -0.5 @ k.mT + own[:, None]).softmax(-1) @ v
        F.scaled_dot_product_attention(q, k, v, attn_mask=own[:, None])
    assert calls.calls == 2
    return {one.code for one in calls.findings if one.severity == "error"}


@pytest.mark.parametrize("pictures", [1, 2, ALONG, 4])
def test_the_mask_counts_windows_as_the_batch_does(pictures: int) -> None:
    by_window, by_picture = mask().repeat(pictures, 1, 1), mask().repeat_interleave(pictures, 0)
    assert found(by_window, pictures) == set()
    assert found(by_picture, pictures, is_first=True) == set()
    # As many pictures as windows along a side: either may come first.
    assert found(by_picture, pictures) == ({"batch"} if pictures in (2, 4) else set())
