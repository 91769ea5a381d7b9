"""Longformer (Beltagy et al. 2020, arXiv:2004.05150) and LED's encoder: queries see a band of keys beside the diagonal.

The band is a mask like any other over queries and keys that are projected once more. Were one of these wrong,
weights·V would not be what the module gave, which is compared in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import Any

import torch

from attncli.recording.call import AttentionCall, CallSite, MaskArgument

_BANDED = ("LEDEncoderSelfAttention", "LongformerSelfAttention")


@contextmanager
def read_bands(
    model: Any, wants: Callable[[Any], bool], emit: Callable[[Any, AttentionCall], None], tokens: int
) -> Iterator[None]:
    """Emit what the modules of a model compute that attend in a band; it may be one that has such an encoder.

    Args:
        model: the model.
        wants: says of a module whether what it computes is to be emitted.
        emit: takes a module and its call.
        tokens: how many there are, without what the model adds to fill its last block.
    """

    def run(module: Any, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():  # the softmax of a band is none that the reader of softmax can place
            returned = forward(*args, **kwargs)
            if wants(module):
                options = signature(forward).bind(*args, **kwargs).arguments
                emit(module, _call(module, options["hidden_states"], options["is_index_masked"], returned[0], tokens))
        return returned

    modules = [module for module in model.modules() if type(module).__name__ in _BANDED]
    for module in modules:
        module.forward = partial(run, module, module.forward)
    try:
        yield
    finally:
        for module in modules:
            del module.forward


def _call(
    module: Any, hidden: torch.Tensor, is_padding: torch.Tensor, returned: torch.Tensor, tokens: int
) -> AttentionCall:
    """Return what a module computed of hidden states `[B, T, E]`, w keys to each side, for the first positions."""
    heads, side = module.num_heads, module.one_sided_attn_window_size

    def split(whole: torch.Tensor) -> torch.Tensor:
        """Return `[B, T, H·D]` as `[B, H, T, D]`."""
        return whole.reshape(*whole.shape[:2], heads, -1).transpose(1, 2)[:, :, :tokens]

    q, k, v = (split(projection(hidden)) for projection in (module.query, module.key, module.value))
    positions, is_text = torch.arange(tokens, device=hidden.device), ~is_padding[:, :tokens]
    band = (positions[:, None] - positions).abs() <= side
    allowed = band & is_text[:, None, :] & is_text[:, :, None]  # a query that is padding sees nothing
    return AttentionCall(
        api="sdpa",  # as there, a query without keys has weights of 0
        place=CallSite("", 0, "", None),
        shape=(len(q), heads, tokens, tokens),
        dtype=str(q.dtype).removeprefix("torch."),
        device=str(q.device),
        q=q,
        k=k,
        v=v,
        masks=(MaskArgument("band", allowed[:, None], "attend"),),
        scale=module.head_dim**-0.5,
        output=split(returned),
        output_of="what its attention module gave",
    )
