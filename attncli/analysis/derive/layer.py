"""A layer whose numbers are made of recorded ones: averaged, multiplied through the layers, or weighted by values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.attention import row_blocks
from attncli.masks.expressions import Mask, RuleMask, smallest
from attncli.trace.layer import Derived, LayerTrace, Proof, RowSource

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


class DerivedRows(NamedTuple):
    """Rows that are made when they are asked for; see `RowSource`.

    Attributes:
        shape: `(H, Q, K)`.
        make: gives some query rows of one head.
    """

    shape: tuple[int, int, int]
    make: Callable[[int, Int[np.ndarray, " Q"]], Float[np.ndarray, "Q K"]]

    def __getitem__(self, place: Any, /) -> Any:
        return self.make(*place)


def derived_from(layer: LayerTrace, weights: RowSource, derived: Derived, **changed: Any) -> LayerTrace:
    """Return the layer with other numbers in place of its weights, and without what gave these.

    Its mask, heads and proof are those of the layer, unless others are passed.
    """
    shared = {name: getattr(layer, name) for name in ("mask", "heads", "proof")}
    return LayerTrace(
        layer.layer, layer.kind, None, None, None, None, **shared | changed, recorded_weights=weights, derived=derived
    )


def worst(proofs: Sequence[Proof | None]) -> Proof | None:
    """Return the proof with the largest error; None where one of the layers has no proof."""
    measured = [proof for proof in proofs if proof is not None]
    if not measured or len(measured) < len(proofs):
        return None
    return measured[int(np.argmax([proof.max_abs_error for proof in measured]))]  # a NaN is the largest


def any_mask(layers: Sequence[LayerTrace], is_merged: bool) -> Mask:
    """Return the mask that allows what any of the layers allows: head by head or, merged, in any head."""
    first = layers[0].mask
    if all(is_same_rule(first, layer.mask) for layer in layers):
        return first
    heads, queries, keys = layers[0].cells

    def allowed(rows: Int[np.ndarray, " Q"]) -> Iterator[Bool[np.ndarray, "#H Q K"]]:
        for layer in layers:
            own = layer.mask.rows(list(layer.heads if is_merged else range(heads)), rows)
            yield np.asarray(own.any(axis=0, keepdims=True)) if is_merged else own

    blocks = row_blocks(np.arange(queries), keys * heads)
    return collected((reduce(np.logical_or, allowed(rows)) for rows in blocks), 1 if is_merged else heads)


def is_same_rule(first: Mask, second: Mask) -> bool:
    """Return whether two masks are one rule; cells are never compared, even if the same."""
    return isinstance(first, RuleMask) and isinstance(second, RuleMask) and first == second


def collected(blocks: Iterator[Bool[np.ndarray, "#H Q K"]], heads: int) -> Mask:
    """Return the mask of blocks of rows in its smallest exact form."""
    return smallest(np.concatenate([*blocks], axis=1), heads)
