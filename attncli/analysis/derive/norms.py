"""Value-weighted attention: how much a key really hands over, where a weight says only what share it takes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from attncli.analysis.derive.layer import DerivedRows, derived_from
from attncli.attention import vector_norms
from attncli.errors import NotExposedError
from attncli.trace.layer import Derived, HeadTrace, LayerTrace

if TYPE_CHECKING:
    from jaxtyping import Float, Int


def with_norms(layer: LayerTrace) -> LayerTrace:
    """Return the layer with ‖weight·v·W_o‖ in place of each weight, after Kobayashi et al. 2020.

    "Attention is Not Only a Weight: Analyzing Transformers with Vector Norms", eq. 4: v is the value with its bias,
    W_o the rows of the output projection that the head is multiplied by, without the projection's bias. Where W_o is
    not recorded it is ‖weight·v‖, which leaves out how far W_o stretches the value.

    Raises:
        NotExposedError: the layer does not show its values.
    """
    if layer.v is None or not layer.v.shape[-1]:
        raise NotExposedError(f"--norms needs the values V, and layer {layer.layer} does not expose them")

    @cache
    def value_norms(head: int) -> Float[np.ndarray, " K"]:
        """Return the length of each key's value as one head hands it over."""
        value = layer.head(head).v
        if layer.out_projection is not None:
            width = value.shape[1]
            with np.errstate(invalid="ignore", over="ignore"):
                value = value @ layer.out_projection[head * width : (head + 1) * width]
        return vector_norms(value)

    def rows(head: int, queries: Int[np.ndarray, " Q"]) -> Float[np.ndarray, "Q K"]:
        with np.errstate(invalid="ignore", over="ignore"):
            return HeadTrace(layer, head, queries).weights * value_norms(head)

    return derived_from(layer, DerivedRows(layer.cells, rows), Derived("norms", is_distribution=False))


def rule_of(layers: tuple[LayerTrace, ...]) -> str:
    """Return what the numbers are, in a sentence."""
    if all(layer.out_projection is not None for layer in layers):
        return "norms: ‖weight·v·W_o‖, the length of what each key adds to the output (Kobayashi et al. 2020)"
    return "norms: ‖weight·v‖, before the output projection W_o, which is not recorded (after Kobayashi et al. 2020)"
