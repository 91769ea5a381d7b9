"""What a run will take of the memory, said before it starts."""

from __future__ import annotations

import sys
from typing import Any

import torch

from attncli.engines.cpu import free_memory
from attncli.engines.torch.configuration import sides
from attncli.errors import InputError

_OVERHEAD = 200e6  # blocks of scores and what the libraries hold besides
_QUADRATIC = 4  # [H, Q, K] arrays that a model's own eager attention holds at a time, at the most


def room_for(model: Any, tokens: int, layers: int, is_watched: bool) -> int:
    """Return how many sentences of one length may run together.

    Args:
        model: the loaded model.
        tokens: length of the sentences.
        layers: how many layers are recorded.
        is_watched: whether the model runs its own eager attention, whole matrices and all.

    Raises:
        InputError: not even one fits; with the estimate and what is available.
    """
    there = _available(model.device)
    if there is None:
        return sys.maxsize
    one, two = (estimate(model.config, model.dtype.itemsize, batch, tokens, layers, is_watched) for batch in (1, 2))
    if one > there:
        raise InputError(
            f"{tokens} tokens would take about {one / 1e9:.1f} GB and {there / 1e9:.1f} GB are free; "
            "shorten the text, cut it with --truncate, or ask for fewer layers"
        )
    return 1 + int((there - one) // (two - one))


def estimate(config: Any, itemsize: int, batch: int, tokens: int, layers: int, is_watched: bool) -> float:
    """Return about how many bytes a forward pass takes beside the weights."""
    config = max(sides(config), key=lambda side: side.hidden_size)
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    inner = max(inner) if isinstance(inner, list | tuple) else inner
    activations = tokens * (12 * config.hidden_size + 4 * inner) * itemsize
    matrices = 2 * tokens**2  # masks, of booleans
    if is_watched:
        matrices += _QUADRATIC * config.num_attention_heads * tokens**2 * itemsize
    one = activations + matrices + trace_size(config, tokens, layers, is_watched)
    bias = 0  # T5's, and the copy that is recorded
    if hasattr(config, "relative_attention_num_buckets"):
        bias = 3 * config.num_attention_heads * tokens**2 * itemsize
    return float(batch * (one + bias) + _OVERHEAD)


def trace_size(config: Any, tokens: int, layers: int, is_watched: bool) -> float:
    """Return about how many bytes a trace takes: Q, K and V, and where the model is watched scores and weights."""
    config = max(sides(config), key=lambda side: side.hidden_size)
    cells = config.num_attention_heads * tokens**2 if is_watched else 0
    return 4.0 * layers * (3 * tokens * config.hidden_size + 2 * cells)


def _available(device: torch.device) -> float | None:
    """Return how many bytes are free where the model runs; None if the system does not say."""
    return float(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else free_memory()
