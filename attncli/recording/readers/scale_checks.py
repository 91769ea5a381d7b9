"""What the numbers say that scale attention: q·k is divided by √D once, as a rule; not twice, and seldom never."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from attncli.masks.findings import Finding
from attncli.recording.readers.origins import Number, Origins

_LEAST_WIDTH = 4  # of fewer numbers √D may be any factor
_CONSTANT = 0.01  # how much the lengths of vectors vary at most that were normalised
_NORMALISED = 2.0  # how long queries times keys may be that were, with learned factors; more in wide heads


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


def of_fused(
    origins: Origins, query: torch.Tensor, key: torch.Tensor, scale: float, heads: int = 1
) -> tuple[Finding, ...]:
    """Return what is wrong with the scale of a function that scales by itself: 1 is said, or it was scaled before.

    Args:
        origins: what is followed.
        query: `[…, D]`.
        key: `[…, D]`.
        scale: of the function.
        heads: how many heads the queries have; 1 where that is not known.
    """
    width = query.shape[-1]
    if width == 1:
        return ()
    before = origins.factor(query).numbers, origins.factor(key).numbers
    if scale == 1 and not any(before):
        return (no_scale(width),)
    if (twice := scaled_twice((*before, (scale,)), width, "before the call and in it")) is not None:
        # muP has 1/D, and some get it so.
        return (Finding("unscaled", "note", twice.message, advice="right where 1/D is meant, as in muP"),)
    numbers = [scale, *(float(each) for side in before for each in side)]
    wrong = wrong_scale(math.prod(numbers), numbers, heads, width, query, key)
    return () if wrong is None else (wrong,)


def wrong_scale(
    scale: float,
    numbers: Sequence[float],
    heads: int,
    width: int,
    query: torch.Tensor | None,
    key: torch.Tensor | None,
) -> Finding | None:
    """Return that q·k is divided by the root of the model's width, or multiplied with √D.

    Args:
        scale: all that q·k is multiplied with.
        numbers: the factors of it; of 1/√D and another number, as an attention multiplier, nothing is said.
        heads: how many heads the queries have; 1 where that is not known.
        width: D.
        query: `[…, D]`; None where it is not at hand.
        key: likewise.
    """
    is_of_model = is_root(scale, heads * width) and any(is_root(each, heads * width) for each in numbers)
    if heads > 1 and is_of_model and not math.isclose(scale, 1 / width, rel_tol=1e-3):
        return Finding(
            "unscaled", "error",
            f"q·k is divided by √{heads * width}, of the width of all {heads} heads; each head has {width} numbers",
            advice=f"divide by √{width}",
        )  # fmt: skip
    if width < _LEAST_WIDTH or not math.isclose(scale, width**0.5, rel_tol=1e-3):
        return None
    message = f"q·k is multiplied with √{width}, where it is divided by it as a rule"
    if query is None or key is None or _are_normalised(query, key):
        return Finding("unscaled", "note", message, advice="right where queries and keys are normalised")
    return Finding("unscaled", "error", message, advice=f"divide by √{width}")


def _are_normalised(query: torch.Tensor, key: torch.Tensor) -> bool:
    """Return whether the vectors of queries or keys may have been given a length, with learned factors or without.

    A view of a projection of several heads was not: the lengths of its heads are what they are.
    """
    width = query.shape[-1]
    if any(each._base is not None and each._base.shape[-1] > width for each in (query, key)):
        return False
    lengths = [side.detach().float().norm(dim=-1) for side in (query, key)]
    lengths = [each[each > 0] for each in lengths]
    if any(each.numel() < 2 or float(each.std() / each.mean()) < _CONSTANT for each in lengths):
        return True
    return float(lengths[0].mean() * lengths[1].mean()) < max(_NORMALISED, width / 8)


def is_root(number: float, width: int) -> bool:
    """Return whether a number is 1/√D, as half precision holds it."""
    return math.isclose(number, width**-0.5, rel_tol=1e-3)
