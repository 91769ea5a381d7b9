"""Tensors inside of `torch.func`: what `vmap` and `grad` wrap, as the plain tensors that they are."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from attncli.recording.call import AttentionCall

_functorch = torch._C._functorch


def are_running() -> bool:
    """Return whether a function runs inside of `vmap`, `grad` or another such transformation."""
    return _functorch.peek_interpreter_stack() is not None


def unwrapped(call: AttentionCall) -> AttentionCall:
    """Return a call with plain tensors: what `vmap` runs over is part of the batch."""
    batch = call.shape[0]
    plain = partial(_plain, batch=batch)
    tensors = {name: plain(value) for name, value in vars(call).items() if isinstance(value, Tensor)}
    masks, ignored = (
        tuple(mask._replace(values=plain(mask.values), source_tensor=None) for mask in masks)
        for masks in (call.masks, call.ignored_masks)
    )
    project = call.project

    def projected() -> tuple[Tensor, Tensor, Tensor]:
        assert project is not None
        return cast(tuple[Tensor, Tensor, Tensor], tuple(map(plain, project())))

    runs = max((len(value) for name, value in tensors.items()), default=batch)
    return replace(
        call,
        **tensors,  # type: ignore[arg-type]  # each in its own field
        shape=(runs, *call.shape[1:]),
        masks=masks,
        ignored_masks=ignored,
        project=project and projected,
    )


def _plain(tensor: Tensor, batch: int) -> Tensor:
    """Return `[runs·B, …]` of a tensor that is `[B, …]` in each run, or itself where all runs have the same."""
    runs: list[int] = []
    while _functorch.is_functorch_wrapped_tensor(tensor):
        axis = _functorch.maybe_get_bdim(tensor) if _functorch.is_batchedtensor(tensor) else None
        tensor = _functorch.get_unwrapped(tensor)
        if axis is not None:
            tensor = tensor.movedim(axis, 0)
            runs.append(len(tensor))
    if not runs:
        return tensor
    own = tensor.shape[len(runs) :]
    return tensor.expand(*tensor.shape[: len(runs)], batch, *own[1:]).flatten(0, len(runs))
