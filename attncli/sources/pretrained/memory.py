"""Whether a run fits into memory, before it starts: an estimate from the configuration, and what there is."""

from __future__ import annotations

import os
from typing import Any

import torch

from attncli.errors import InputError

_ROOM = 200e6  # blocks of scores and what the libraries hold besides
_QUADRATIC = 4  # [H, Q, K] arrays that a model's own eager attention holds at a time, at the most


def check_fits(model: Any, batch: int, tokens: int, layers: int, is_watched: bool) -> None:
    """Refuse a batch that would not fit.

    Args:
        model: the loaded model.
        batch: how many sentences.
        tokens: length of the longest.
        layers: how many layers are recorded.
        is_watched: whether the model runs its own eager attention, whole matrices and all.

    Raises:
        InputError: the estimate is above what is available, with both numbers.
    """
    needed = estimate(model.config, model.dtype.itemsize, batch, tokens, layers, is_watched)
    there = _available(model.device)
    if there is not None and needed > there:
        raise InputError(
            f"{tokens} tokens would take about {_gigabytes(needed)} and {_gigabytes(there)} are free; "
            "shorten the text, cut it with --truncate, or ask for fewer layers"
        )


def estimate(config: Any, itemsize: int, batch: int, tokens: int, layers: int, is_watched: bool) -> float:
    """Return about how many bytes a forward pass takes beside the weights."""
    hidden = config.hidden_size
    inner = getattr(config, "intermediate_size", None) or 4 * hidden
    inner = max(inner) if isinstance(inner, list | tuple) else inner
    activations = batch * tokens * (8 * hidden + 4 * inner) * itemsize
    recorded = batch * tokens * 3 * hidden * 4 * layers
    mask = batch * tokens**2
    if is_watched:
        cells = batch * config.num_attention_heads * tokens**2
        return float(activations + recorded + mask + cells * (_QUADRATIC * itemsize + 2 * 4 * layers) + _ROOM)
    return float(activations + recorded + 2 * mask + _ROOM)


def _available(device: torch.device) -> float | None:
    """Return how many bytes are free where the model runs; None if the system does not say."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    found = []
    try:
        with open("/proc/meminfo") as file:
            kilobytes = next(line.split()[1] for line in file if line.startswith("MemAvailable"))
        found.append(float(kilobytes) * 1024)
        with open("/sys/fs/cgroup/memory.max") as limit, open("/sys/fs/cgroup/memory.current") as current:
            found.append(float(limit.read()) - float(current.read()))
    except (OSError, StopIteration, ValueError):  # another system, or no limit ("max")
        pass
    if not found and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))
    return min(found, default=None)


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB"
