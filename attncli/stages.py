"""What is quadratic in the sequence, derived on demand: some heads of a layer over some of its query rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from attncli import attention

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from attncli.layer import LayerTrace


class Stages:
    """The stages of attention, each derived when it is first asked for, unless the layer recorded it.

    Attributes:
        layer: the layer.
        heads: which of its heads, at least one.
        queries: which of its query rows.
    """

    def __init__(self, layer: LayerTrace, heads: tuple[int, ...], queries: Int[np.ndarray, " Q"]) -> None:
        self.layer = layer
        self.heads = heads
        self.queries = queries

    @cached_property
    def scores(self) -> Float[np.ndarray, "H Q K"]:
        """Scaled, biased and softcapped, before the mask; recorded ones are −inf where masked."""
        layer = self.layer
        if layer.scores is not None:
            return self._rows(layer.scores)
        assert layer.q is not None
        assert layer.k is not None
        assert layer.scale is not None
        bias = layer.bias
        if bias is not None:
            bias = bias[:, self.queries] if len(bias) == 1 else self._rows(bias)
        products = attention.dot_products(self._rows(layer.q), layer.k[_slice_or_list(self.key_heads)])
        return attention.attention_scores(products, layer.scale, bias, layer.softcap)

    @cached_property
    def mask(self) -> Bool[np.ndarray, "#H Q K"]:
        """True where the query may attend to the key; one plane where the heads agree."""
        return self.layer.mask.rows(list(self.heads), self.queries)

    @cached_property
    def weights(self) -> Float[np.ndarray, "H Q K"]:
        """Softmax of the masked scores over the keys."""
        layer = self.layer
        if layer.weights is not None:
            return self._rows(layer.weights)
        sinks = None if layer.sinks is None else layer.sinks[list(self.heads)]
        return attention.attention_weights(attention.masked_scores(self.scores, self.mask, layer.fill), sinks)

    @cached_property
    def output(self) -> Float[np.ndarray, "H Q Dv"]:
        """Weights·V, the context vectors."""
        assert self.layer.v is not None
        return attention.attention_output(self.weights, self.layer.v[_slice_or_list(self.key_heads)])

    @property
    def key_heads(self) -> list[int]:
        """The key/value head that each head reads (grouped-query attention, Ainslie et al. 2023)."""
        size = self.layer.num_heads // self.layer.num_groups
        return [head // size for head in self.heads]

    def _rows(self, array: Float[np.ndarray, "all_heads all_queries N"]) -> Float[np.ndarray, "H Q N"]:
        # A head at a time: that is how a derived layer makes its weights.
        return np.stack([array[head, self.queries] for head in self.heads])


def stages_of(layer: LayerTrace, heads: Sequence[int], queries: Int[np.ndarray, " Q"]) -> Iterator[Stages]:
    """Yield heads in order: as many at once as a block has room for, each of them with its query rows in blocks."""
    together = max(attention.CELLS // max(len(queries) * layer.num_keys, 1), 1)
    for start in range(0, len(heads), together):
        some = tuple(heads[start : start + together])
        for rows in attention.row_blocks(queries, layer.num_keys * len(some)):
            yield Stages(layer, some, rows)


def _slice_or_list(indices: list[int]) -> slice | list[int]:
    """Return consecutive indices as a slice, which copies nothing."""
    first, count = indices[0], len(indices)
    return slice(first, first + count) if indices == list(range(first, first + count)) else indices
