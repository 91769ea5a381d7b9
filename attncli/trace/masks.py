"""Masks of saved traces, as mask grids."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from attncli.errors import UsageError
from attncli.files import Tensors, check_file
from attncli.masks.mask_grid import MaskGrid
from attncli.text import layers_named, visible
from attncli.trace.layer import LayerTrace
from attncli.trace.store import load


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
    trace = load(name, layers, kind=kind)
    by_mask: dict[tuple[Any, ...], list[LayerTrace]] = {}
    for layer in trace.layers:
        cells = _cells(layer)
        by_mask.setdefault((layer.kind, cells.shape, np.packbits(cells).tobytes()), []).append(layer)
    if len(by_mask) > 1:
        masks = "; ".join(layers_named((each.layer for each in alike), alike[0].kind) for alike in by_mask.values())
        raise UsageError(f"{visible(name)} has several masks: {masks}. Choose one with --layer or --kind")
    (layer, *_) = next(iter(by_mask.values()))
    # Tokens without texts, which have only positions, get no names.
    sides = trace.sides(layer)
    queries, keys = (["" if token.label == str(token.index) else token.label for token in side] for side in sides)
    return MaskGrid(name, _cells(layer), layer.mask.past, tokens=(queries, keys))


def _cells(layer: LayerTrace) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return the mask of a layer, with one plane where all heads agree."""
    cells = layer.mask.rows(list(range(layer.num_heads)), np.arange(layer.num_queries))
    return cells[:1] if (cells == cells[:1]).all() else cells
