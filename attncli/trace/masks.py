"""Masks of traces: layers that have the same one share it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors import UsageError
from attncli.files import Tensors, check_file
from attncli.masks.expressions import one_plane
from attncli.masks.mask_grid import MaskGrid
from attncli.masks.recognition import recognise_plane
from attncli.text import layers_named, visible
from attncli.trace.layer import LayerTrace
from attncli.trace.store import load
from attncli.trace.tokens import Tokens
from attncli.trace.trace import Trace

if TYPE_CHECKING:
    from jaxtyping import Bool


@dataclass(frozen=True)
class LayerMask:
    """One mask, and the layers that have it."""

    first: LayerTrace  # the first of these layers
    layers: tuple[int, ...]  # their indices
    allowed: Bool[np.ndarray, "P Q K"]  # True = attend; a plane for all heads, or one for each
    queries: Tokens  # the tokens of the rows
    keys: Tokens  # the tokens of the columns

    @property
    def kind(self) -> str:
        """`encoder`, `decoder` or `cross`; else `full`, `sliding`, `chunked` or `bidirectional`, by the cells."""
        if self.first.kind != "self":
            return self.first.kind
        if np.triu(self.allowed, 1).any():
            return "bidirectional"
        rules = " ".join(str(recognise_plane(plane, 0)) for plane in self.allowed)
        return "sliding" if "window" in rules else "chunked" if "chunk" in rules else "full"


def layer_masks(trace: Trace) -> list[LayerMask]:
    """Return the masks of a trace in the order of their first layers."""
    groups: dict[Any, list[LayerTrace]] = {}
    for layer in trace.layers:
        cells = one_plane(layer.mask_cells)
        groups.setdefault((layer.kind, cells.shape, np.packbits(cells).tobytes()), []).append(layer)
    alike = ((layers[0], tuple(layer.layer for layer in layers)) for layers in groups.values())
    return [LayerMask(first, layers, one_plane(first.mask_cells), *trace.sides(first)) for first, layers in alike]


def is_trace(name: str) -> bool:
    """Return whether a file is a saved trace, and not a mask alone."""
    with suppress(Exception):  # the reader of the mask reports errors of the file
        check_file(name)
        return "attncli" in Tensors(Path(name)).metadata
    return False


def mask_of_trace(name: str, layers: str | None, kind: str | None) -> MaskGrid:
    """Return the mask of the chosen layers of a saved trace.

    Raises:
        UsageError: these layers have several masks, or the trace lacks them.
        InputError: the trace cannot be read.
    """
    masks = layer_masks(load(name, layers, kind=kind))
    if len(masks) > 1:
        named = "; ".join(layers_named(mask.layers, mask.first.kind) for mask in masks)
        raise UsageError(f"{visible(name)} has several masks: {named}. Choose one with --layer or --kind")
    # Tokens without texts, which have only positions, get no names.
    (mask,) = masks
    sides = (mask.queries, mask.keys)
    queries, keys = (["" if token.label == str(token.index) else token.label for token in side] for side in sides)
    return MaskGrid(name, mask.allowed, mask.first.mask.past, tokens=(queries, keys))
