"""How far apart float32 leaves what two programs compute in different orders, on whatever processor."""

import math

import numpy as np

from attncli.trace.layer import LayerTrace

ULP = 2.0**-24  # what a number is rounded by, relative to it


def of_weights(layer: LayerTrace, terms: int) -> float:
    """Return the largest difference of two weights that is rounding.

    Each of n terms of a sum is rounded by up to an `ULP` of the sum, up or down, which leaves about √n of them. So a
    score differs by that share of the largest, and a softmax passes on half of a difference at most. The other half
    is for the layers below."""
    heads = [layer.head(head) for head in range(layer.num_heads)]
    largest = max(
        float(np.abs(head.scores, where=head.weights > 0, out=np.zeros_like(head.scores)).max()) for head in heads
    )
    return ULP * math.sqrt(terms) * max(1.0, largest)
