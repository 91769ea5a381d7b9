"""A layer whose numbers are made of recorded ones, a block of its heads and query rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.masks.expressions import Mask
from attncli.trace.layer import Derived, LayerTrace

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    Rows = Int[np.ndarray, " Q"]
    MakeRows = Callable[[Sequence[int], Rows], Float[np.ndarray, "H Q K"]]


def derived_layer(
    layers: Sequence[LayerTrace], rows: MakeRows, mask: Mask, heads: tuple[int, ...], **changed: Any
) -> LayerTrace:
    """Return the first of some layers with numbers made of all in place of its weights, and without what gave these.

    `changed` are fields of `Derived`. The proof is the one with the largest error, if every layer has one.
    """
    layer, proofs = layers[0], [each.proof for each in layers if each.proof is not None]
    is_proven = len(proofs) == len(layers)
    proof = proofs[int(np.argmax([each.max_abs_error for each in proofs]))] if is_proven else None  # NaN is the largest
    derived = (layer.derived or Derived(layer.cells, rows))._replace(rows=rows, **changed)
    none = None, None, None, None
    return LayerTrace(layer.layer, layer.kind, *none, mask, heads, proof=proof, derived=derived)
