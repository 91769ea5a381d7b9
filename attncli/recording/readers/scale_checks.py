"""What is wrong with the scale of an attention: q·k is divided by the root of a head's width, as a rule."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from attncli.masks.findings import Finding

_LEAST_WIDTH = 4  # of fewer numbers √D may be any factor
_CONSTANT = 0.01  # how much the lengths of vectors vary at most that were normalised
_NORMALISED = 2.0  # how long queries times keys may be that were, with learned factors; more in wide heads


def wrong_scale(
    scale: float, factors: Sequence[float], heads: int, query: torch.Tensor, key: torch.Tensor
) -> Finding | None:
    """Return that q·k is divided by the root of the model's width, or multiplied with √D.

    Args:
        scale: what q·k is multiplied with.
        factors: of which it is made; of 1/√D and another number, as an attention multiplier, nothing is said.
        heads: how many heads the queries have.
        query: `[…, D]`.
        key: likewise.
    """
    width = query.shape[-1]
    is_of_model = _is_root(scale, heads * width) and any(_is_root(each, heads * width) for each in factors)
    if heads > 1 and is_of_model and not math.isclose(scale, 1 / width, rel_tol=1e-3):  # 1/D is muP's
        return Finding(
            "unscaled", "error",
            f"q·k is divided by √{heads * width}, of the width of all {heads} heads; each head has {width} numbers",
            advice=f"divide by √{width}",
        )  # fmt: skip
    if width < _LEAST_WIDTH or not math.isclose(scale, width**0.5, rel_tol=1e-3):
        return None
    message = f"q·k is multiplied with √{width}, where it is divided by it as a rule"
    if _are_normalised(query, key):
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


def _is_root(number: float, width: int) -> bool:
    """Return whether a number is 1/√width, as half precision holds it."""
    return math.isclose(number, width**-0.5, rel_tol=1e-3)
