"""The calls of functions that do everything themselves: what is handed to them is queries, keys and values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attncli.masks.findings import Finding
from attncli.recording.call import Api, AttentionCall, MaskArgument
from attncli.recording.readers.origins import AttentionOutput, splits_positions
from attncli.recording.readers.reader import ThreadContext

SPLIT = Finding(
    "heads", "error", "a view alone splits the heads, so that each head is a part of the positions",
    advice="view(B, T, H, D).transpose(1, 2)",
)  # fmt: skip


def emit(
    context: ThreadContext,
    api: Api,
    inputs: tuple[Tensor, Tensor, Tensor],
    scale: float,
    made: Tensor,
    found: Sequence[Finding] = (),
    **parts: Any,
) -> None:
    """Emit the call of such a function, with what its queries, keys and values show, and follow what it gave.

    Args:
        context: the thread.
        api: see AttentionCall.
        inputs: queries, keys and values, as they were handed over.
        scale: what the function multiplies q·k with.
        made: what it gave.
        found: what the reader of the function finds.
        parts: the attributes of AttentionCall that only the reader of the function knows.
    """
    query, key, _ = inputs
    findings = [*found]
    place = context.place()
    if not query.is_nested:
        factor = context.origins.factor(query)
        before = (factor.scale, context.origins.factor(key).scale)
        heads, module = parts["shape"][1], context.module()
        wrong = wrong_scale(scale, [scale], before, heads, query, key, module, head_width=factor.width)
        findings += [] if wrong is None else [wrong]
        if any(map(splits_positions, inputs)):
            findings.append(SPLIT)
        else:
            context.origins.put(made, AttentionOutput(place))
    context.emit(AttentionCall(
        api=api, place=place, dtype=str(query.dtype).removeprefix("torch."), device=str(query.device),
        scale=scale, is_training=context.is_training(), findings=tuple(findings), **parts,
    ))  # fmt: skip


_LEAST_WIDTH = 4  # of fewer numbers √D may be any factor
_CONSTANT = 0.01  # how much the lengths of vectors vary at most that were normalised
_NORMALISED = 2.0  # how long queries times keys may be that were, with learned factors; more in wide heads


def wrong_scale(
    scale: float,
    factors: Sequence[float],
    before: tuple[float, float],
    heads: int,
    query: torch.Tensor,
    key: torch.Tensor,
    module: torch.nn.Module | None,
    is_written: bool = False,
    head_width: int | None = None,
) -> Finding | None:
    """Return that q·k is divided by √D twice or not at all, by the root of another width, or multiplied with √D.

    Args:
        scale: what q·k is multiplied with.
        factors: of which it is made; of 1/√D and another number, as an attention multiplier, nothing is said.
        before: what queries and keys were multiplied with before; NaN where that is not known.
        heads: how many heads the queries have.
        query: `[…, D]`.
        key: likewise.
        module: that ran.
        is_written: whether the program writes its attention out.
        head_width: D before a weight was absorbed, where one was.
    """
    width, sides = query.shape[-1], (*before, scale)
    factors, scale = [*factors, *before], math.prod(sides)
    is_of_model = _is_root(scale, heads * width) and any(_is_root(each, heads * width) for each in factors)
    if heads > 1 and is_of_model and not math.isclose(scale, 1 / width, rel_tol=1e-3):  # 1/D is muP's
        return Finding(
            "unscaled", "error",
            f"q·k is divided by √{heads * width}, the width of all {heads} heads. Each head has width {width}",
            advice=f"divide by √{width}",
        )  # fmt: skip
    if width < _LEAST_WIDTH:
        return None
    if all(each == 1 for each in factors):
        message = f"q·k is not scaled by 1/√{width}"
        return Finding("unscaled", "note", message, advice="correct if the model is made this way, as T5 is")
    if sum(_is_root(each, width) for each in sides) > 1 and scale < 1.01 / width:
        message = f"q·k is divided by √{width} twice, before the "
        if is_written:
            return Finding("unscaled", "error", f"{message}product and after it", advice="divide once")
        return Finding("unscaled", "note", f"{message}call and in it", advice="correct if 1/D is meant, as in muP")
    if not math.isclose(scale, width**0.5, rel_tol=1e-3):
        return _root_of_another_width(factors, head_width or width, query, key, module)
    message = f"q·k is multiplied by √{width}, not divided"
    if _are_normalised(query, key):
        return Finding("unscaled", "note", message, advice="correct if queries and keys are normalised")
    return Finding("unscaled", "error", message, advice=f"divide by √{width}")


def _root_of_another_width(
    factors: Sequence[float], width: int, query: Tensor, key: Tensor, module: torch.nn.Module | None
) -> Finding | None:
    """Return that q·k is multiplied with 1/√N alone, where N is neither the width nor its square, which is muP's.

    N may be meant where a configuration has it (Gemma), where queries and keys are normalised, and where zeros behind N
    numbers pad heads for a kernel.
    """
    numbers = [each for each in factors if each != 1]
    if len(numbers) != 1 or not 0 < numbers[0] < 1:
        return None
    root = round(numbers[0] ** -2)
    config = getattr(module, "config", None)
    if (
        not math.isclose(numbers[0] ** -2, root, rel_tol=1e-5)
        or root in (width, width**2, getattr(config, "query_pre_attn_scalar", None))
        or any(root < side.shape[-1] and not bool(side[..., root:].any()) for side in (query, key))
        or _are_normalised(query, key)
    ):
        return None
    message = (
        f"q·k is multiplied by {numbers[0]:.4g} = 1/√{root}; heads of width {width} have {width**-0.5:.4g} = 1/√{width}"
    )
    advice = f"correct if the model is made this way, as Gemma is; else divide by √{width}"
    return Finding("unscaled", "note", message, advice=advice)


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


# --- nested tensors: sequences of their own lengths, without padding between them ----------------------------


def longest(x: Tensor) -> int:
    """Return the length of `[…, T, D]`, or of the longest sequence of a nested tensor."""
    return max(row.shape[-2] for row in x.unbind()) if x.is_nested else x.shape[-2]


def padded(x: Tensor) -> Tensor:
    """Return a tensor whose sequences all have the length of the longest."""
    return x.to_padded_tensor(0.0) if x.is_nested else x


def own_tokens(key: Tensor) -> MaskArgument:
    """Return as a mask what the lengths of nested keys say: each sequence attends to its own."""
    lengths = torch.tensor([row.shape[-2] for row in key.unbind()], device=key.device)
    own = torch.arange(longest(key), device=key.device) < lengths[:, None]
    return MaskArgument("nested", own[:, None, None], "attend")
