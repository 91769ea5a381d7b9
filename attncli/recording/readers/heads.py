"""Heads that a view alone splits off or puts together, so that each of them is a mixture of positions.

`[B, T, H·D]` is `[B, T, H, D]` by a view and `[B, H, T, D]` after a transpose; viewed as `[B, H, T, D]` at once, a head
is a part of the positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from attncli.masks.findings import Finding
from attncli.recording.call import CallSite

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


def split_heads(before: Sequence[int], after: Sequence[int]) -> int:
    """Return how many heads a view puts into the batch, `[B, H, T, D]` or `[T, B, H·D]` before; 1 where it does not."""
    if len(after) != 3 or not all(after):
        return 1
    if len(before) == 4 and tuple(before[2:]) == tuple(after[1:]):
        return before[1]
    if len(before) == 3 and before[0] == after[0] and before[2] != after[2] and before[2] % after[2] == 0:
        return before[2] // after[2] if before[1] and after[1] % before[1] == 0 else 1
    return 1


def merged(output: Tensor, result: Tensor, place: Callable[[], CallSite]) -> Finding | None:
    """Return that a view makes `[B, T, H·D]` or `[B·T, H·D]` of an output `[B, H, T, D]` or `[B·H, T, D]`."""
    before, after = output.shape, tuple(result.shape)
    if len(after) == 2 and len(before) == 4 and before[0] * before[2] == after[0]:
        after = before[0], before[2], after[1]
    if not is_split(after, before):
        return None
    shapes = f"{list(output.shape)} as {list(result.shape)}"
    return Finding(
        "heads", "error",
        f"the output's heads are put together by a view alone, {shapes} at {place()}, which mixes positions",
        advice="transpose(1, 2) before it",
    )  # fmt: skip
