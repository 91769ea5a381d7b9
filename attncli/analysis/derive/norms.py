"""Value-weighted attention: how much a key really hands over, where a weight says only what share it takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from attncli.analysis.derive.layer import derived_layer
from attncli.attention import vector_norms
from attncli.errors import NotExposedError
from attncli.trace.layer import LayerTrace, Stages

if TYPE_CHECKING:
    from jaxtyping import Float

    from attncli.analysis.derive.layer import Rows


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
    values: Iterable[Float[np.ndarray, "K E"]] = (layer.head(head).v for head in range(layer.num_heads))
    if layer.out_projection is not None:
        values = map(np.matmul, values, np.split(layer.out_projection, layer.num_heads))
    with np.errstate(invalid="ignore", over="ignore"):
        norms = np.stack([*map(vector_norms, values)])

    def rows(heads: Sequence[int], queries: Rows) -> Float[np.ndarray, "H Q K"]:
        with np.errstate(invalid="ignore", over="ignore"):
            return Stages(layer, tuple(heads), queries).weights * norms[[*heads], None]

    return derived_layer([layer], rows, layer.mask, layer.heads, measure="norms", is_distribution=False)


def rule_of(layers: tuple[LayerTrace, ...]) -> str:
    """Return what the numbers are, in a sentence."""
    if all(layer.out_projection is not None for layer in layers):
        return "norms: ‖weight·v·W_o‖, the length of what each key adds to the output (Kobayashi et al. 2020)"
    return "norms: ‖weight·v‖, before the output projection W_o, which is not recorded (after Kobayashi et al. 2020)"
