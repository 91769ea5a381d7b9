"""Keys and values that heads share: of the head beside, or of one far apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from attncli.files import to_numpy
from attncli.masks.findings import Finding
from attncli.recording.call import AttentionCall


def findings_of_heads(call: AttentionCall) -> Iterator[Finding]:
    """Yield, while the program waits, keys that heads share in another order than values; or, as a note, both so."""
    if call.shape[2] == 1:  # a step of a generation, whose prompt has shown it
        return
    keys, values = _order(call.k), _order(call.v)
    if "tiled" not in (keys, values):
        return
    if {keys, values} == {"tiled", "side by side"}:
        message = "heads that share keys do not share their values: one of the two is repeated in another order"
        yield Finding("heads", "error", message, call.shape[1], advice="repeat_interleave both")
    elif keys == values:
        message = "heads far apart share their keys: they are repeated as a whole, and not one by one"
        yield Finding("heads", "note", message, call.shape[1], advice="right where the model was trained so")


def _order(tensor: Any) -> Literal["tiled", "side by side"] | None:
    """Return how heads `[B, H, K, D]` share what they have, by their first or last position; None where they do not."""
    if tensor is None or tensor.shape[1] < 4 or tensor.shape[3] < 2:
        return None
    heads = tensor.shape[1]
    for own in (to_numpy(tensor[0, :, position]) for position in (0, -1)):
        for several in (each for each in range(2, heads // 2 + 1) if heads % each == 0):
            again = heads // several
            if _are(own, np.tile(own[:several], (again, 1)), several):
                return "tiled"
            if _are(own, own[::again].repeat(again, axis=0), several):
                return "side by side"
    return None


def _are(own: np.ndarray[Any, Any], repeated: np.ndarray[Any, Any], several: int) -> bool:
    """Return whether heads have what was repeated, of which there are several that differ."""
    return bool((own == repeated).all()) and len(np.unique(own, axis=0)) == several
