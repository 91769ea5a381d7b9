"""A layer whose numbers are made of recorded ones: merged, multiplied through the layers, or weighted by values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.attention import row_blocks
from attncli.masks.expressions import Mask, RuleMask, smallest
from attncli.trace.layer import Derived, LayerTrace, Proof, RowSource

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


@dataclass(frozen=True)
class DerivedRows:
    """Rows that are made when they are asked for.

    Attributes:
        shape: `(H, Q, K)`.
        make: gives some query rows of one head.
    """

    shape: tuple[int, int, int]
    make: Callable[[int, Int[np.ndarray, " Q"]], Float[np.ndarray, "Q K"]]

    def __getitem__(self, place: tuple[int, Int[np.ndarray, " Q"]], /) -> Float[np.ndarray, "Q K"]:
        """See `Rows`."""
        return self.make(*place)


def derived_from(layer: LayerTrace, weights: RowSource, derived: Derived, **changed: Any) -> LayerTrace:
    """Return the layer with other numbers in place of its weights, and without what gave these.

    Its mask, heads and proof are those of the layer, unless they are given too.
    """
    shared = {name: getattr(layer, name) for name in ("mask", "heads", "proof")}
    return LayerTrace(
        layer.layer, layer.kind, None, None, None, None, **shared | changed, weights=weights, derived=derived
    )


def worst(proofs: Sequence[Proof | None]) -> Proof | None:
    """Return the proof with the largest error; None where one of the layers has no proof."""
    measured = [proof for proof in proofs if proof is not None]
    if not measured or len(measured) < len(proofs):
        return None
    errors = np.array([proof.max_abs_error for proof in measured])
    return measured[int(errors.argmax())]  # a NaN is the largest


def any_mask(layers: Sequence[LayerTrace], is_merged: bool) -> Mask:
    """Return the mask that allows what any of the layers allows: head by head or, merged, in any head."""
    first = layers[0].mask
    if all(is_same_rule(first, layer.mask) for layer in layers):
        return first
    heads, queries, keys = layers[0].cells
    return collected(
        lambda rows: reduce(np.logical_or, (_allowed(layer, rows, is_merged) for layer in layers)),
        1 if is_merged else heads,
        row_blocks(np.arange(queries), keys * heads),
    )


def is_same_rule(first: Mask, second: Mask) -> bool:
    """Return whether two masks are one rule; cells are never compared, even if the same."""
    return isinstance(first, RuleMask) and isinstance(second, RuleMask) and first == second


def collected(
    allowed: Callable[[Int[np.ndarray, " Q"]], Bool[np.ndarray, "#H Q K"]],
    heads: int,
    blocks: Sequence[Int[np.ndarray, " Q"]],
) -> Mask:
    """Return the mask whose rows `allowed` gives, block by block, in its smallest exact form."""
    return smallest(np.concatenate([allowed(rows) for rows in blocks], axis=1), heads)


def _allowed(layer: LayerTrace, rows: Int[np.ndarray, " Q"], is_merged: bool) -> Bool[np.ndarray, "#H Q K"]:
    if is_merged:
        return np.asarray(layer.mask.rows(list(layer.heads), rows).any(axis=0, keepdims=True))
    return layer.mask.rows(list(range(layer.num_heads)), rows)
