"""What the heads of a layer give to the next: softmax(q·kᵀ)·v, of which a forward pass keeps nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attncli import attention
from attncli.engines.numpy import parallel
from attncli.trace.layer import LayerTrace, stages_of

if TYPE_CHECKING:
    from jaxtyping import Float, Int

# Scores of one head that are at work together: with the exponentials in their place they stay in the cache of a core,
# and with fewer rows BLAS would lay out the keys too often. Blocks of keys with a running maximum as well (Milakov and
# Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135) were no faster here at 4,096 tokens.
_NEAR = 2**18
_MOST, _LEAST = 128, 32


def attention_output(layer: LayerTrace, past: int = 0) -> Float[np.ndarray, "H Q Dv"]:
    """Return weights·V of every head, from a row on. Of many rows they are made block by block, on all cores."""
    heads, queries, keys = layer.cells
    assert layer.v is not None
    output = np.empty((heads, queries - past, layer.v.shape[-1]), np.float32)
    every = tuple(range(heads))

    def staged(rows: Int[np.ndarray, " R"]) -> None:
        for stages in stages_of(layer, every, rows):
            some = slice(stages.queries[0] - past, stages.queries[-1] + 1 - past)
            output[stages.heads[0] : stages.heads[-1] + 1, some] = stages.output

    def fused(rows: slice) -> None:
        allowed = layer.mask.rows([*every], np.arange(rows.start, rows.stop))
        if len(allowed) > 1 or not allowed.any(axis=-1).all():
            staged(np.arange(rows.start, rows.stop))
            return
        assert layer.q is not None
        assert layer.k is not None
        assert layer.scale is not None
        q, k, v = layer.q[:, rows], layer.k, np.asarray(layer.v)
        some = slice(rows.start - past, rows.stop - past)
        output[:, some] = attention.fused_output(q, k, v, layer.scale, allowed[0], layer.softcap)

    is_short = queries - past <= parallel.LONG
    if is_short or layer.bias is not None or layer.sinks is not None or layer.weights is not None:
        staged(np.arange(past, queries))
    else:
        step = min(max(_NEAR // keys, _LEAST), _MOST)
        parallel.parallel_for(fused, [slice(start, min(start + step, queries)) for start in range(past, queries, step)])
    return output
