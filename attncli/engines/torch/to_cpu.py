"""Copies what a pass computed from its device to the CPU, all of it in one transfer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import torch

from attncli.recording.call import AttentionCall

_TENSORS = ("q", "k", "v", "scores", "weights", "sinks", "output", "weight_sums")


def is_on_cpu(call: AttentionCall) -> bool:
    """Whether the CPU reads the tensors of a call where they lie."""
    return not any(_is_away(tensor) for tensor in _tensors(call))


def calls_on_cpu(calls: Sequence[AttentionCall]) -> list[AttentionCall]:
    """Return calls with their tensors on the CPU."""
    copies = fetched(tensor for call in calls for tensor in _tensors(call))
    return [_with_tensors(call, copies) for call in calls]


def _tensors(call: AttentionCall) -> Iterator[torch.Tensor | None]:
    yield from (getattr(call, name) for name in _TENSORS)
    yield from (mask.values for mask in call.masks)


def _with_tensors(call: AttentionCall, copies: Iterator[torch.Tensor | None]) -> AttentionCall:
    own = dict(zip(_TENSORS, copies, strict=False))
    return replace(call, **own, masks=tuple(mask._replace(values=next(copies)) for mask in call.masks))


def _is_away(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and tensor.device.type != "cpu"


def fetched(tensors: Iterable[torch.Tensor | None]) -> Iterator[torch.Tensor | None]:
    """Return tensors on the CPU; from their device they come in one transfer for each type of number.

    A transfer waits for everything that was asked of the device before, however little it brings. So the tensors are
    laid end to end where they are, each of them once, and half precision crosses as it is.
    """
    every = list(tensors)
    away = {id(each): each for each in every if each is not None and _is_away(each)}
    copies: dict[int, torch.Tensor] = {}
    streams = {}
    for _, group in groupby(sorted(away.values(), key=_device_and_type), _device_and_type):
        same = list(group)
        packed = torch.cat([each.reshape(-1) for each in same])
        # A GPU writes by itself only into memory that stays in its place.
        copy = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=packed.is_cuda)
        copy.copy_(packed, non_blocking=packed.is_cuda)
        if packed.is_cuda:
            streams[packed.device] = torch.cuda.current_stream(packed.device)
        parts = torch.split(copy, [each.numel() for each in same])
        copies |= {id(each): part.view(each.shape) for each, part in zip(same, parts, strict=True)}
    for stream in streams.values():
        stream.synchronize()
    return iter([copies.get(id(each), each) for each in every])


def _device_and_type(tensor: torch.Tensor) -> tuple[str, str]:
    return str(tensor.device), str(tensor.dtype)
