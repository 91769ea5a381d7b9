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

    The vector of one position changes before the call, in one more forward a line: that of the module just before it,
    or of `sources`. Of a right cut, `operands` q, k and v change at that position alone; where `[B, T, H·d]` is viewed
    as `[B, H, T, d]`, they change where its numbers come to lie.
    """
    layout = forward.layout
    if layout.is_time_first or layout.length < 2:
        return
    for line, number in [*calls.first_at.items()][:_MOST_LINES]:
        before = [output for output in forward.outputs.values() if output.calls == (number, number)]
        shapes = {output.name: tuple(output.values.shape) for output in before}
        fits = [name for name, shape in shapes.items() if len(shape) == 3 and shape[:2] == layout[:2]]
        vectors, source = operands.get(number), (fits[-1],) if fits else sources if number == 0 else ()
        if vectors and source:
            positions = np.zeros(layout[:2], bool)
            positions[0, layout.length // 2] = True
            moved = calls.operands(partial(again, positions, source)).get(number, {})
            names = [name for name in vectors if name in moved and _is_viewed(vectors[name], moved[name], layout)]
            if names:
                message = f"heads are cut out of the wrong axis, which mixes positions: {', '.join(names)} at {line}"
                yield Finding("heads", "error", message, advice=_CUT, made_at=(line,))
                continue
        output = calls.outputs.get(number)
        if output is not None and (projection := forward.line_that_mixes(number + 1, output)) is not None:
            message = f"heads are put together along the wrong axis, which mixes positions: the output of {line}"
            yield Finding("heads", "error", message, advice=_JOINED, made_at=(projection,))


def _is_viewed(vectors: Any, moved: Any, layout: SequenceLayout) -> bool:
    """Return whether vectors of a call, `[B, H, T, d]`, differ where a view puts those of the middle of row 0.

    That is a view of positions before features, or of features before positions.
    """
    batch, length, _ = layout
    heads, position = vectors.shape[0] * vectors.shape[1] // batch, length // 2
    if vectors.shape != moved.shape or vectors.shape[2] != length or vectors.shape[0] * vectors.shape[1] % batch:
        return False
    is_changed = (vectors != moved).cpu().numpy().reshape(batch, -1, vectors.shape[3])
    changed = np.flatnonzero(is_changed.any(axis=2))
    features = np.zeros((heads * vectors.shape[3], length), bool)
    features[:, position] = True
    is_of_features = bool((is_changed[0] == features.reshape(is_changed[0].shape)).all())
    is_viewed = is_of_features or bool((changed // heads == position).all())
    return len(changed) > 0 and is_viewed and bool((changed % length != position).any())
