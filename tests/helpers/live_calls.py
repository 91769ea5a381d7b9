"""Calls made by hand, as a reader of live attention makes them; and what the parts of a call make by definition."""

from typing import Any

import torch

from attncli import watch  # noqa: F401  # as users take it, so that results can be printed
from attncli.recording.call import AttentionCall, CallSite, MaskArgument

B, H, T, D = 3, 2, 8, 4
LENGTHS = (8, 5, 2)
REAL = torch.arange(T) < torch.tensor(LENGTHS)[:, None]  # [B, T], False at the padding
CAUSAL = torch.ones(T, T, dtype=torch.bool).tril()


def place(line: int = 1, module: str | None = "attn") -> CallSite:
    return CallSite("model.py", line, "Block.forward", module)


def mask_argument(values: torch.Tensor, name: str = "attn_mask", masked: bool = False) -> MaskArgument:
    convention = "masked" if masked else "attend" if values.dtype == torch.bool else "additive"
    return MaskArgument(name, values.reshape((1,) * (4 - values.dim()) + values.shape), convention, values)


def sdpa(
    *masks: MaskArgument,
    at: CallSite | None = None,
    size: tuple[int, int, int] = (B, T, T),
    is_causal: bool = False,
    **more: Any,
) -> AttentionCall:
    batch, queries, keys = size
    q, k, v = (torch.randn(batch, H, length, D) for length in (queries, keys, keys))
    scores = q @ k.mT * D**-0.5
    for one in masks:
        if one.convention == "additive":
            scores = scores + one.values
        else:
            scores = scores.masked_fill(one.values if one.convention == "masked" else ~one.values, -torch.inf)
    if is_causal:
        scores = scores.masked_fill(~torch.ones(queries, keys, dtype=torch.bool).tril(), -torch.inf)
    output = scores.softmax(-1) @ v
    facts = {"dtype": "float32", "device": "cpu", "output": output.nan_to_num(0), **more}
    shape = batch, H, queries, keys
    return AttentionCall("sdpa", at or place(), shape, q=q, k=k, v=v, masks=masks, is_causal=is_causal,
                scale=D**-0.5, **facts)  # fmt: skip


def padding(real: torch.Tensor = REAL) -> MaskArgument:
    return mask_argument(real[:, None, None, :])


def recomputed(call: AttentionCall) -> torch.Tensor:
    """Return the weights that the parts of a call make, in double precision, each mask as its API documents it."""
    q, k, _ = call.project() if call.project else (call.q, call.k, call.v)
    k = k.double().repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = torch.einsum("bhqd,bhkd->bhqk", q.double(), k) * call.scale
    assert tuple(scores.shape) == call.shape
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.is_causal:
        later = torch.arange(call.shape[3]) > torch.arange(call.shape[2])[:, None]
        scores = scores.masked_fill(later, -torch.inf)
    for mask in call.masks:
        if mask.convention == "additive":
            scores = scores + mask.values.double()
        else:
            scores = scores.masked_fill(mask.values == (mask.convention == "masked"), -torch.inf)
    return scores.softmax(-1)


def weighed(call: AttentionCall) -> torch.Tensor:
    v = call.project()[2] if call.project else call.v
    return (recomputed(call) @ v.double().repeat_interleave(call.shape[1] // v.shape[1], 1)).to(v.dtype)
