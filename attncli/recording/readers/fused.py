"""The calls of functions that do everything themselves: their arguments are queries, keys and values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attncli.recording.call import Api, AttentionCall, MaskArgument
from attncli.recording.readers.reader import ThreadContext


def emit(context: ThreadContext, api: Api, query: Tensor, key: Tensor, scale: float, **parts: Any) -> None:
    """Emit the call of such a function.

    Args:
        context: the thread.
        api: see AttentionCall.
        query: as it was handed over.
        key: likewise.
        scale: what the function multiplies q·k with.
        parts: the attributes of AttentionCall that only the reader of the function knows.
    """
    factors = () if query.is_nested else (*(context.origins.factor(each).scale for each in (query, key)), scale)
    context.emit(AttentionCall(
        api=api, place=context.place(), dtype=str(query.dtype).removeprefix("torch."), device=str(query.device),
        scale=scale, scale_factors=factors, is_training=context.is_training(), **parts,
    ))  # fmt: skip


# --- nested tensors: sequences of their own lengths, without padding between them ----------------------------


def longest(x: Tensor) -> int:
    """Return the length of `[…, T, D]`, or of the longest sequence of a nested tensor."""
    return max(row.shape[-2] for row in x.unbind()) if x.is_nested else x.shape[-2]


def padded(x: Tensor) -> Tensor:
    """Return a tensor whose sequences all have the length of the longest."""
    return x.to_padded_tensor(0.0) if x.is_nested else x


def own_tokens(key: Tensor) -> MaskArgument:
    """Return as a mask the lengths of nested keys: each sequence attends to its own."""
    lengths = torch.tensor([row.shape[-2] for row in key.unbind()], device=key.device)
    own = torch.arange(longest(key), device=key.device) < lengths[:, None]
    return MaskArgument("nested", own[:, None, None], "attend")
