"""What the numbers say that scale attention: q·k is divided by √D once, as a rule; not twice, and seldom never."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from attncli.masks.findings import Finding
from attncli.sources.live.flow import Nodes, Number


def no_scale(width: int) -> Finding:
    """Return that nothing scales q·k, as some models have it on purpose."""
    return Finding(
        "unscaled", "note", f"q·k is not scaled; without 1/√{width} its size grows with the width of a head",
        advice="right where the model leaves the scale out on purpose, as T5 does",
    )  # fmt: skip


def scaled_twice(sides: Sequence[Sequence[Number]], width: int, where: str) -> Finding | None:
    """Return that q·k is divided by √D twice, where that is so.

    Args:
        sides: the numbers that the queries, the keys and their products were multiplied with.
        width: D.
        where: it is, in words.
    """
    numbers = [math.prod(map(float, side)) for side in sides if side]
    if sum(is_root(number, width) for number in numbers) < 2 or not math.prod(numbers) < 1.01 / width:
        return None
    return Finding("unscaled", "error", f"q·k is divided by √{width} twice, {where}")


def of_fused(nodes: Nodes, query: torch.Tensor, key: torch.Tensor, scale: float) -> tuple[Finding, ...]:
    """Return what is wrong with the scale of a function that scales by itself: 1 is said, or it was scaled before."""
    width = query.shape[-1]
    if width == 1:
        return ()
    before = nodes.steps(query), nodes.steps(key)
    if scale == 1 and not any(before):
        return (no_scale(width),)
    twice = scaled_twice((*before, (scale,)), width, "before the call and in it")
    return () if twice is None else (twice,)


def is_root(number: float, width: int) -> bool:
    """Return whether a number is 1/√D, as half precision holds it."""
    return math.isclose(number, width**-0.5, rel_tol=1e-3)
