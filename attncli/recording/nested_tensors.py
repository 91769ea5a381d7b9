"""Nested tensors: sequences of their own lengths, without padding between them."""

from __future__ import annotations

import torch
from torch import Tensor

from attncli.recording.call import MaskArgument


def longest(x: Tensor) -> int:
    """Return the length of `[…, T, D]`, or of the longest sequence of a nested tensor."""
    return max(row.shape[-2] for row in x.unbind()) if x.is_nested else x.shape[-2]


def padded(x: Tensor) -> Tensor:
    """Return a tensor whose sequences all have the length of the longest."""
    return x.to_padded_tensor(0.0) if x.is_nested else x


def own_tokens(key: Tensor) -> MaskArgument:
    """Return as a mask what the lengths of nested keys say: each sequence attends to its own."""
    lengths = torch.tensor([row.shape[-2] for row in key.unbind()], device=key.device)
    own = torch.arange(longest(key), device=key.device) < lengths[:, None]
    return MaskArgument("nested", own[:, None, None], "attend")
