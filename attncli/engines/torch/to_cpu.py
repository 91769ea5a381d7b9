"""From the device to the CPU: what a pass has captured, all of it at once."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import torch


def is_here(tensor: torch.Tensor) -> bool:
    """Whether the CPU reads a tensor where it lies."""
    return tensor.device.type == "cpu"


def fetched(tensors: Iterable[torch.Tensor | None]) -> list[Any]:
    """Return tensors on the CPU; from their device they come in one transfer for each type of number.

    A transfer waits for everything that was asked of the device before, however little it brings. So the tensors are
    laid end to end where they are, each of them once, and half precision crosses as it is.
    """
    found = list(tensors)
    away = {id(each): each for each in found if each is not None and not is_here(each)}
    copies: dict[int, torch.Tensor] = {}
    streams = {}
    for _, group in groupby(sorted(away.values(), key=_kind), _kind):
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
    return [copies.get(id(each), each) for each in found]


def _kind(tensor: torch.Tensor) -> tuple[str, str]:
    return str(tensor.device), str(tensor.dtype)
