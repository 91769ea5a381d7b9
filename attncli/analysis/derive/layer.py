"""A layer whose numbers are made of recorded ones: merged, multiplied through the layers, or weighted by values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.attention import row_blocks
from attncli.masks.expressions import Mask, RuleMask, smallest
from attncli.trace.layer import LayerTrace, Proof

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    Rows = Callable[[int, Int[np.ndarray, " Q"]], Float[np.ndarray, "Q K"]]


class Lazy:
    """What stands where `[H, Q, K]` is recorded and gives the same to `HeadTrace`: rows of it, made when asked for.

    Attributes:
        shape: `(H, Q, K)`.
        rows: gives the rows of one head for the query positions asked.
    """

    def __init__(self, shape: tuple[int, int, int], rows: Rows) -> None:
        self.shape = shape
        self.rows = rows

    def __getitem__(self, place: tuple[int, Int[np.ndarray, " Q"]]) -> Float[np.ndarray, "Q K"]:
        return self.rows(*place)


@dataclass(frozen=True)
class DerivedLayer(LayerTrace):
    """One layer's derived numbers, in place of its weights; it has no scores, queries, keys, values or output.

    Attributes:
        measure: what the numbers are: `weights`, or `norms`.
        is_distribution: whether they are shares of one, as weights are, so that metrics mean something.
        layer_name: what several layers have become, such as `mean`; None is this layer.
        head_name: likewise of heads.
    """

    measure: str = "weights"
    is_distribution: bool = True
    layer_name: str | None = None
    head_name: str | None = None

    def __post_init__(self) -> None:
        """Accept what the derivations make."""

    @property
    def label(self) -> int | str:
        """See `LayerTrace.label`."""
        return self.layer if self.layer_name is None else self.layer_name

    def head_label(self, head: int) -> int | str:
        """See `LayerTrace.head_label`."""
        return head if self.head_name is None else self.head_name

    @property
    def capture(self) -> str:
        """See `LayerTrace.capture`."""
        return "derived"

    @property
    def missing(self) -> frozenset[str]:
        """See `LayerTrace.missing`."""
        names = {"embeddings", "q", "k", "v", "scores", "output"}
        return frozenset(names if self.is_distribution else {*names, "metrics"})

    @property
    def shapes(self) -> dict[str, list[int]]:
        """See `LayerTrace.shapes`."""
        return {self.measure: list(self.cells)}


def derived_from(layer: LayerTrace, weights: Lazy | Float[np.ndarray, "H Q K"], **changed: Any) -> DerivedLayer:
    """Return the layer with other numbers in place of its weights; what is not changed stays as it was."""
    kept = {name: getattr(layer, name) for name in ("layer", "kind", "mask", "heads", "proof")}
    if isinstance(layer, DerivedLayer):
        kept |= {name: getattr(layer, name) for name in ("measure", "is_distribution", "layer_name", "head_name")}
    return DerivedLayer(q=None, k=None, v=None, scale=None, **{**kept, "weights": weights, **changed})


def worst(proofs: Sequence[Proof | None]) -> Proof | None:
    """Return the largest of several errors; None where one of the layers has no proof."""
    known = [proof for proof in proofs if proof is not None]
    if not known or len(known) < len(proofs):
        return None
    errors = np.array([proof.max_abs_error for proof in known])
    return known[int(errors.argmax())]  # a NaN is the largest


def any_mask(layers: Sequence[LayerTrace], is_merged: bool) -> Mask:
    """Return the mask that allows what one of the layers allows, in each head or, merged, in one of its heads."""
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
