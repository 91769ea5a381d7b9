"""The calls of functions that do everything themselves: what is handed to them is queries, keys and values."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attncli.recording.call import Api, AttentionCall
from attncli.recording.lineage import lineage
from attncli.recording.readers.heads import SPLIT
from attncli.recording.readers.origins import AttentionOutput
from attncli.recording.readers.reader import ThreadContext
from attncli.recording.readers.scale_checks import of_fused


def emit(
    context: ThreadContext, api: Api, inputs: tuple[Tensor, Tensor, Tensor], result: Tensor, scale: float, **parts: Any
) -> None:
    """Emit the call of such a function, with what its queries, keys and values show, and know its output.

    Args:
        context: the thread.
        api: see AttentionCall.
        inputs: queries, keys and values, as they were handed over.
        result: what the function gave.
        scale: what it multiplies q·k with.
        parts: the attributes of AttentionCall that only the reader of the function knows.
    """
    query, key, _ = inputs
    place = context.place()
    findings = () if query.is_nested else (
        *of_fused(context.origins, query, key, scale, parts["shape"][1]),
        *((SPLIT,) if any(context.origins.factor(each).is_split for each in inputs) else ()),
    )  # fmt: skip
    context.origins.put(result, AttentionOutput(place))
    context.emit(AttentionCall(
        api=api, place=place, dtype=str(query.dtype).removeprefix("torch."), device=str(query.device), scale=scale,
        is_training=context.is_training(), findings=findings, lineage=lineage(query, key, result), **parts,
    ))  # fmt: skip
