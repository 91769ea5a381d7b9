"""Heads that are cut out of the wrong axis, or put together along it, which mixes the positions of a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from attncli.masks.findings import Finding

if TYPE_CHECKING:
    from attncli.analysis.prove.inputs import SeenCalls
    from attncli.recording.rerun import Forward, ModuleOutput

_CUT = "cut heads after positions: x.view(B, T, H, d).transpose(1, 2)"
_JOINED = "put positions before heads first: x.transpose(1, 2).reshape(B, T, H * d)"


def mixed_heads(forward: Forward, calls: SeenCalls) -> Iterator[Finding]:
    """Yield what mixes positions at each line of the program that attends.

    Where `[B, T, H·d]` is viewed as `[B, H, T, d]`, q, k or v has the numbers of the output before the call in their
    order; where `[B, H, T, d]` is viewed as `[B, T, H·d]`, the projection after it reads those of the call.
    """
    if forward.layout.is_time_first:
        return
    for number, tensors in calls.firsts.items():
        line, outputs = calls.places[number], forward.outputs.values()
        before = [output.values for output in outputs if output.calls == (number, number) and output.values.dim() == 3]
        parts = [part for values in before for count in (1, 2, 3) for part in values.chunk(count, 2)]
        names = [name for name in ("q", "k", "v") if any(_is_viewed(tensors.get(name), part) for part in parts)]
        if names:
            message = f"heads are cut out of the wrong axis, which mixes positions: {', '.join(names)} at {line}"
            yield Finding("heads", "error", message, advice=_CUT, made_at=(line,))
        elif "output" in tensors:
            after = [one for one in outputs if one.calls == (number + 1,) * 2 and type(one.module).__name__ == "Linear"]
            if after and _reads_viewed(after[0], tensors["output"]):
                message = f"heads are put together along the wrong axis, which mixes positions: the output of {line}"
                yield Finding("heads", "error", message, advice=_JOINED, made_at=(after[0].place,))


def _is_viewed(heads: Any, vectors: Any) -> bool:
    """Return whether heads `[B, H, T, d]` are a view of vectors `[B, T, H·d]`, or of `[B, H·d, T]`."""
    if heads is None or heads.numel() != vectors.numel() or not heads.numel():
        return False
    batch, length, width = vectors.shape
    if heads.shape[-2] != length or width % heads.shape[-1]:
        return False
    heads = heads.reshape(batch, -1, *heads.shape[-2:])
    right = vectors.reshape(batch, length, -1, heads.shape[3]).transpose(1, 2)
    views = (vectors.reshape(heads.shape), vectors.transpose(1, 2).reshape(heads.shape))
    return not heads.equal(right) and any(map(heads.equal, views))


def _reads_viewed(projection: ModuleOutput, heads: Any) -> bool:
    """Return whether a projection reads the heads `[B, H, T, d]` of an attention put together by a view."""
    linear: Any = projection.module
    joined = heads.transpose(-3, -2).flatten(-2)
    if projection.values.shape[:2] != joined.shape[:-1] or linear.in_features != joined.shape[2]:
        return False
    both = (projection.recomputed(each) for each in (joined, heads.reshape(joined.shape)))
    is_right, is_viewed = (projection.values.allclose(values, rtol=1e-3, atol=1e-4) for values in both)
    return is_viewed and not is_right
