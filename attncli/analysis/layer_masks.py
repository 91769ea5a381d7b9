"""Masks of a trace: layers that have the same one share it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.masks.recognition import recognise_plane

if TYPE_CHECKING:
    from jaxtyping import Bool

    from attncli.trace.layer import LayerTrace
    from attncli.trace.tokens import Tokens
    from attncli.trace.trace import Trace


@dataclass(frozen=True)
class LayerMask:
    """One mask, and the layers that have it."""

    kind: str  # encoder, decoder or cross; else full, sliding, chunked or bidirectional, by the cells
    layers: tuple[int, ...]  # their indices
    allowed: Bool[np.ndarray, "P Q K"]  # True = attend; a plane for all heads, or one for each
    queries: Tokens  # the tokens of the rows
    keys: Tokens  # the tokens of the columns


def layer_masks(trace: Trace) -> list[LayerMask]:
    """Return the masks of a trace in the order of their first layers."""
    groups: dict[Any, tuple[LayerTrace, Bool[np.ndarray, "P Q K"], list[int]]] = {}
    for layer in trace.layers:
        allowed = layer.mask.rows(list(range(layer.num_heads)), np.arange(layer.num_queries))
        key = (layer.kind, allowed.shape, allowed.tobytes())
        groups.setdefault(key, (layer, allowed, []))[2].append(layer.layer)
    return [
        LayerMask(
            _kind_of(allowed) if layer.kind == "self" else layer.kind, tuple(layers), allowed, *trace.sides(layer)
        )
        for layer, allowed, layers in groups.values()
    ]


def _kind_of(allowed: Bool[np.ndarray, "P Q K"]) -> str:
    if np.triu(allowed, 1).any():
        return "bidirectional"
    rules = " ".join(str(recognise_plane(plane, 0)) for plane in allowed)
    return "sliding" if "window" in rules else "chunked" if "chunk" in rules else "full"
