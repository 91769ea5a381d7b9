"""Heads that a view alone splits off or puts together, so that each of them is a mixture of positions.

`[B, T, H·D]` is `[B, T, H, D]` by a view and `[B, H, T, D]` after a transpose; viewed as `[B, H, T, D]` at once, a head
is a part of the positions. A function of torch that views is seen with the tensors that it was given, so that copies
are known too, which no stride tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from attncli.masks.findings import Finding
from attncli.recording.call import CallSite
from attncli.recording.provenance import Nodes
from attncli.recording.readers.reader import Reader, ThreadContext

SPLIT = Finding(
    "heads", "error", "heads are split by a view alone, so that each head is a part of the positions, whole",
    advice="view(B, T, H, D).transpose(1, 2)",
)  # fmt: skip


def is_split(before: Sequence[int], after: Sequence[int]) -> bool:
    """Return whether a view makes `[B, H, T, D]` or `[B·H, T, D]` of `[B, T, H·D]`, in which the heads are last."""
    if len(before) != 3 or len(after) not in (3, 4) or not after[-1]:
        return False
    rows, positions, width = before
    *outer, again, part = after
    heads = width // part
    if not (1 < positions == again != heads > 1):
        return False
    return heads * part == width and list(outer) in ([rows, heads], [rows * heads])


def is_merged(before: Sequence[int], after: Sequence[int]) -> bool:
    """Return whether a view makes `[B, T, H·D]` or `[B·T, H·D]` of `[B, H, T, D]` or `[B·H, T, D]`."""
    if len(after) == 2 and len(before) == 4 and before[0] * before[2] == after[0]:
        after = before[0], before[2], after[1]
    return is_split(after, before)


def split_findings(nodes: Nodes, *inputs: torch.Tensor) -> tuple[Finding, ...]:
    """Return what is wrong with the heads of queries, keys and values, as they are handed to a function."""
    found = [nodes.get(each) for each in inputs]
    is_wrong = any(node is not None and node.state.flow is not None and node.state.flow.is_split for node in found)
    return (SPLIT,) if is_wrong else ()


class Merging(Reader):
    """Sees what becomes of outputs, until they have other axes."""

    def __init__(self, context: ThreadContext) -> None:
        super().__init__(context)
        views = torch.Tensor.view, torch.Tensor.reshape, torch.reshape
        copies = torch.Tensor.contiguous, torch.Tensor.clone, torch.clone, torch.Tensor.to
        self.followed = dict.fromkeys(views, self._reshaped) | dict.fromkeys(copies, self._copied)

    def _reshaped(self, _: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        place = self.context.nodes.output_of(args[0] if args else None)
        if place is not None and is_merged(args[0].shape, result.shape):
            self.context.emit_late(place, _merged(args[0], result, self.context.place()))

    def _copied(self, _: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        place = self.context.nodes.output_of(args[0] if args else None)
        if place is not None and result is not args[0]:
            self.context.nodes.keep_output(result, place)


def _merged(output: torch.Tensor, result: torch.Tensor, place: CallSite) -> Finding:
    shapes = f"{list(output.shape)} as {list(result.shape)}"
    return Finding(
        "heads", "error",
        f"the output's heads are put together by a view alone, {shapes} at {place}, which mixes positions",
        advice="transpose(1, 2) before it",
    )  # fmt: skip
