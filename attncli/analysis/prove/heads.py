"""Heads that are cut out of the wrong axis, or put together along it, which mixes the positions of a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.masks.findings import Finding

if TYPE_CHECKING:
    from attncli.analysis.prove.inputs import SeenCalls
    from attncli.recording.rerun import Forward, OutputName, SequenceLayout

_MOST_LINES = 4  # of a program, whose attention is checked
_CUT = "cut heads after positions: x.view(B, T, H, d).transpose(1, 2)"
_JOINED = "put positions before heads first: x.transpose(1, 2).reshape(B, T, H * d)"


def mixed_heads(
    forward: Forward,
    calls: SeenCalls,
    operands: dict[int, dict[str, Any]],
    sources: tuple[OutputName | str, ...],
    again: Callable[..., object],
) -> Iterator[Finding]:
    """Yield what mixes positions at each line of the program that attends.

    The vector of one position changes before the call, in one more forward a line. Of a right cut, q, k and v change at
    that position alone; where `[B, T, H·d]` is viewed as `[B, H, T, d]`, they change where its numbers come to lie.

    Args:
        forward: which has ended.
        calls: its attention.
        operands: q, k and v of the first call of each line.
        sources: whose vectors are changed where no module gives vectors just before the attention.
        again: runs the forward once more with other vectors of some positions of some sources.
    """
    layout = forward.layout
    if layout.is_time_first or layout.length < 2:
        return
    for place, number in [*calls.first_at.items()][:_MOST_LINES]:
        before = [one for one in forward.outputs.values() if one.calls == (number, number) and one.values.dim() == 3]
        fits = [one.name for one in before if tuple(one.values.shape[:2]) == layout[:2]]
        own, source = operands.get(number), (fits[-1],) if fits else sources if number == 0 else ()
        if own and source:
            positions = np.zeros(layout[:2], bool)
            positions[0, layout.length // 2] = True
            moved = calls.operands(partial(again, positions, source)).get(number, {})
            names = [name for name in own if name in moved and _is_viewed(own[name], moved[name], layout)]
            if names:
                message = f"heads are cut out of the wrong axis, which mixes positions: {', '.join(names)} at {place}"
                yield Finding("heads", "error", message, advice=_CUT, made_at=(place,))
                continue
        if number in calls.outputs and (line := forward.line_that_mixes(number + 1, calls.outputs[number])) is not None:
            message = f"heads are put together along the wrong axis, which mixes positions: the output of {place}"
            yield Finding("heads", "error", message, advice=_JOINED, made_at=(line,))


def _is_viewed(one: Any, other: Any, layout: SequenceLayout) -> bool:
    """Return whether vectors of a call, `[B, H, T, d]`, differ where a view puts those of the middle of row 0."""
    batch, length, _ = layout
    if one.shape != other.shape or one.shape[2] != length or one.shape[0] * one.shape[1] % batch:
        return False
    heads, position = one.shape[0] * one.shape[1] // batch, length // 2
    changed = np.flatnonzero((one != other).any(dim=3).flatten().cpu().numpy())
    is_viewed = bool((changed // heads == position).all())
    return len(changed) > 0 and is_viewed and bool((changed % length != position).any())
