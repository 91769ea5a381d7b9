"""The calls of functions that do everything themselves: what is handed to them is queries, keys and values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attncli.masks.findings import Finding
from attncli.recording.call import Api, AttentionCall, MaskArgument
from attncli.recording.readers.origins import splits_positions
from attncli.recording.readers.reader import ThreadContext
from attncli.recording.readers.scale_checks import wrong_scale

SPLIT = Finding(
    "heads", "error", "heads are split by a view alone, so that each head is a part of the positions, whole",
    advice="view(B, T, H, D).transpose(1, 2)",
)  # fmt: skip


def emit(context: ThreadContext, api: Api, inputs: tuple[Tensor, Tensor, Tensor], scale: float, **parts: Any) -> None:
    """Emit the call of such a function, with what its queries, keys and values show.

    Args:
        context: the thread.
        api: see AttentionCall.
        inputs: queries, keys and values, as they were handed over.
        scale: what the function multiplies q·k with.
        parts: the attributes of AttentionCall that only the reader of the function knows.
    """
    query, key, _ = inputs
    findings: list[Finding] = []
    if not query.is_nested:
        wrong = wrong_scale(scale, [scale], parts["shape"][1], query, key)
        findings += [] if wrong is None else [wrong]
        findings += [SPLIT] if any(map(splits_positions, inputs)) else []
    context.emit(AttentionCall(
        api=api, place=context.place(), dtype=str(query.dtype).removeprefix("torch."), device=str(query.device),
        scale=scale, is_training=context.is_training(), findings=tuple(findings), **parts,
    ))  # fmt: skip


# --- nested tensors: sequences of their own lengths, without padding between them ----------------------------


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
