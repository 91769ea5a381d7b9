"""`flex_attention`: its block mask and its score_mod, which are functions of single cells, as masks and biases.

Both are called for every cell, as flex attention itself calls them (vectorized by `torch.vmap`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from attncli.attention import FORBIDDEN_BELOW
from attncli.masks.findings import Finding
from attncli.recording.call import MaskArgument
from attncli.recording.readers.layout import compact
from attncli.recording.readers.reader import ThreadContext, emit, is_of_nothing

# Scores at which a score_mod is tried: one that adds gives each of them the same number more.
_TRIED = (1.0, -2.5)
_LARGE = 1e6  # a score that any cap cuts to its own value


def read(
    context: ThreadContext, _: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> None:
    """Read the operator that `flex_attention` runs where it is not compiled.

    Its arguments are query, key, value, score_mod, block_mask, scale, and options that decide how it is computed. The
    block_mask is a tuple that ends in the mask_mod, which this operator calls for every cell, and a compiled one in the
    blocks that the tuple lists.
    """
    query, key, value, score_mod, block_mask, scale = args[:6]
    if is_of_nothing(query, key, value):
        return
    shape = (*query.shape[:3], key.shape[-2])
    added, softcap, unsupported = _score_change(score_mod, shape, query.device)
    allowed = _cells(block_mask[-1], shape, query.device)
    masks = [MaskArgument("score_mod", added, "additive")] if added is not None and added.any() else []
    masks += [] if allowed.all() else [MaskArgument("mask_mod", allowed, "attend")]
    emit(
        context, "flex", query, key, scale, shape=shape, q=query, k=key, v=value, masks=tuple(masks), softcap=softcap,
        output=result[0], unsupported=unsupported, findings=_shared_blocks(block_mask, allowed),
    )  # fmt: skip


def _shared_blocks(block_mask: tuple[Any, ...], allowed: torch.Tensor) -> tuple[Finding, ...]:
    """Return that the blocks of one batch row, or head, serve all of them, although the mask_mod differs."""
    for axis, name, what in ((0, "B", "batch row"), (1, "H", "head")):
        if block_mask[2].shape[axis] == 1 < allowed.shape[axis]:
            message = f"mask_mod differs by {what}, but create_block_mask({name}=None) takes those of {what} 0 for all"
            message += ". Compiled code follows these blocks"
            return (Finding("batch", "note", message, advice=f"pass {name}={allowed.shape[axis]}"),)
    return ()


def _cells(
    mod: Callable[..., Any], shape: tuple[int, ...], device: torch.device, score: float | None = None
) -> torch.Tensor:
    """Return what a function of a batch row, a head, a query and a key, and of a score, gives for every cell."""
    scores = [] if score is None else [torch.full(shape, score, device=device)]
    for axis in range(3, -1, -1):
        places = tuple(0 if other == axis else None for other in range(4))
        mod = torch.vmap(mod, in_dims=(*[0] * len(scores), *places))
    cells = mod(*scores, *(torch.arange(length, device=device) for length in shape))
    return compact(cells.expand(shape)).clone()


def _score_change(
    mod: Callable[..., Any], shape: tuple[int, ...], device: torch.device
) -> tuple[torch.Tensor | None, float | None, str | None]:
    """Return what a score_mod adds to a score, -inf where it forbids; its soft cap; and that it does something else."""
    added = _cells(mod, shape, device, 0.0)
    tried = [(score, _cells(mod, shape, device, score)) for score in _TRIED]
    if all(_are_close(values, added + score) for score, values in tried):
        return added, None, None
    cap = float(_cells(mod, shape, device, _LARGE).flatten()[0])
    if all(_are_close(values, cap * torch.tanh(torch.tensor(score / cap))) for score, values in tried):
        return None, cap, None
    return None, None, "the score_mod, which does more than add to a score or cap it"


def _are_close(values: torch.Tensor, others: torch.Tensor) -> bool:
    are_forbidden = (values <= FORBIDDEN_BELOW) & (others <= FORBIDDEN_BELOW)
    return bool((torch.isclose(values, others.to(values), rtol=1e-5, atol=1e-5) | are_forbidden).all())
