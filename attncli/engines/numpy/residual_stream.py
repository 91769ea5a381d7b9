"""A score split by what wrote the hidden states that it reads.

A hidden state is the sum of what the embedding, the heads and the feed-forward networks of the layers below wrote to
the residual stream (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"). With the scale of each
norm held at what it is in this forward pass, queries and keys are linear in it, and so is a score:

    score = q·k · scale = d·x + biases = Σ d·(what a writer wrote) + biases        d = ∂score / ∂x

A direction d is pulled back from the score, layer by layer, through the transpose of what the forward pass does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.engines.numpy.forward import Addition, Layer, Model, RaggedBatch, TokenIds, computing
from attncli.masks.expressions import Expression

if TYPE_CHECKING:
    from jaxtyping import Float

    from attncli.engines.numpy.model_spec import Hidden, Residual

    Directions = Float[np.ndarray, "N E"]
    Terms = Float[np.ndarray, " N"]


class ResidualWriter(NamedTuple):
    """Writer to the residual stream."""

    kind: str  # `embedding` of the token, its `position` or `segment`, `head`, `mlp`, or `bias`
    layer: int | None = None  # its layer; None of the embedding
    head: int | None = None  # which head it is


ScoreTerms = dict[str, dict[ResidualWriter, "Terms"]]


def score_terms(
    model: Model, sentence: TokenIds, mask: Expression | None, head: tuple[int, int], query: int, keys: Sequence[int]
) -> ScoreTerms:
    """Return what each writer adds to the scaled q·k of one query at some keys; see `NativeForward.score_terms`.

    `head` is a layer and its head, `mask` stands in place of the model's own.
    """
    layer, index = head
    batch = RaggedBatch([sentence])
    *below, last = model.layers(layer, mask)
    with computing(batch.longest):
        streams = [model.embed(batch)]
        for lower in below:
            streams.append(lower.finish(streams[-1], lower.head_outputs(lower.project_qkv(streams[-1], batch))))
        stream = streams.pop()
        ((_, q, k, _),) = last.project_qkv(stream, batch)
        key_head = index * len(k) // len(q)
        sides = {"key": Reads(model, keys), "query": Reads(model, [query] * len(keys))}
        sides["key"].pull_back_score(last, stream, "key", key_head, q[index, [query] * len(keys)])
        sides["query"].pull_back_score(last, stream, "query", index, k[key_head, keys])
        for lower in reversed(below):
            stream, additions = streams.pop(), list[Addition]()
            with model.weights.held():
                outputs = lower.head_outputs(lower.project_qkv(stream, batch))
                lower.finish(stream, outputs, additions)
                for reads in sides.values():
                    reads.pull_back_layer(lower, outputs, *additions)
        for reads in sides.values():
            reads.pull_back_embedding(batch)
    return {side: reads.terms for side, reads in sides.items()}


class Reads:
    """Linear functions of the residual stream, pulled back from a layer's queries or keys to the embedding.

    Each reads the hidden state of the token at its position.
    """

    def __init__(self, model: Model, positions: Sequence[int]) -> None:
        self.terms: dict[ResidualWriter, Terms] = {}  # of each writer that was passed, for each function
        self._model, self._positions = model, np.array(positions)
        self._directions: Directions = np.empty(0)

    def pull_back_score(self, layer: Layer, x: Hidden, side: str, head: int, vectors: Float[np.ndarray, "N D"]) -> None:
        """Begin at a head: the scaled product of its query, or its key, with a vector for each function."""
        model, spec, attention = self._model, self._model.spec, self._model.spec.layers[layer.index]
        how, width, before = spec.projections, spec.heads.width, spec.attention_residual.before
        is_key = side == "key"
        count = spec.heads.kv_heads if is_key else spec.heads.count
        name, norm = (how.key, how.key_norm) if is_key else (how.query, how.query_norm)
        d = vectors * np.float32(attention.scale)
        if attention.rope is not None:  # turned back from the position: R(i)q · R(j)k = R(−j)R(i)q · k
            d = attention.rope.rotate(d[None], -self._positions)[0]
        if norm:
            normed = x if before is None else model.normalize(layer.name(before), x)
            raw = model.project(layer.name(name), normed, count * width, how.has_bias)
            d = self._before_norm(norm, d, raw.reshape(len(x), count, width)[:, head], layer)
        # One head's columns of those that a tensor makes.
        columns = np.zeros((len(d), 3, count, width) if how.joint else (len(d), 1, count, width), np.float32)
        columns[:, int(is_key) if how.joint else 0, head] = d
        if how.interleaved_qkv:
            columns = columns.swapaxes(1, 2)
        d = self._before_product(how.joint or name, columns.reshape(len(d), -1), spec.width, how.has_bias, layer)
        self._directions = self._before_norm(before, d, x, layer)

    def pull_back_layer(
        self, layer: Layer, heads: Float[np.ndarray, "T H D"], attention: Addition, fed: Addition
    ) -> None:
        """Go through a layer, from the output of its second sublayer to the input of its first.

        What a head or a network wrote is taken whole: nothing is followed through it.
        """
        spec = self._model.spec
        how, count, width = spec.projections, spec.heads.count, spec.heads.width
        d = self._at_output(layer, spec.feed_forward_residual, *fed)
        self._add(ResidualWriter("mlp", layer.index), d, fed.output)
        d = self._at_output(layer, spec.attention_residual, *attention)
        d = self._before_product(how.output, d, count * width, how.output_has_bias, layer).reshape(-1, count, width)
        for head in range(count):
            self._add(ResidualWriter("head", layer.index, head), d[:, head], heads[:, head])

    def pull_back_embedding(self, batch: RaggedBatch) -> None:
        """End at the rows of the tables."""
        how, d, rows = self._model.spec.embedding, self._directions, self._model.embedded(batch)
        d = self._before_norm(how.norm, d, reduce(np.add, rows.values()), None)
        for kind, written in rows.items():
            self._add(ResidualWriter(kind), d, written)

    def _at_output(self, layer: Layer, residual: Residual, x: Hidden, output: Hidden) -> Directions:
        """Go to the sum `post_norm(x + after(output))`; return the directions at the output."""
        if residual.post_norm is not None:
            self._directions = self._before_norm(residual.post_norm, self._directions, x + output, layer)
        return self._before_norm(residual.after, self._directions, output, layer)

    def _before_norm(self, name: str | None, d: Directions, x: Hidden, layer: Layer | None) -> Directions:
        """Return the directions before a normalization whose scale is held at what it is for `x`."""
        if name is None:
            return d
        name = name if layer is None else layer.name(name)
        if self._model.spec.norm.has_bias:
            self._add_bias(name, d, layer)
        return self._model.centered(d * self._model.norm_gain(name, x[self._positions]))

    def _before_product(self, name: str, d: Directions, width: int, has_bias: bool, layer: Layer) -> Directions:
        """Return the directions before x·Wᵀ + b, where hidden states have a width."""
        if has_bias:
            self._add_bias(layer.name(name), d, layer)
        return self._model.pull_back(layer.name(name), d, width)

    def _add_bias(self, name: str, d: Directions, layer: Layer | None) -> None:
        bias = self._model.weights.vector(name + ".bias", d.shape[-1])
        self._add_terms(ResidualWriter("bias", None if layer is None else layer.index), d @ bias)

    def _add(self, writer: ResidualWriter, d: Directions, written: Hidden) -> None:
        self._add_terms(writer, np.vecdot(d, written[self._positions], dtype=np.float64))

    def _add_terms(self, writer: ResidualWriter, terms: Terms) -> None:
        self.terms[writer] = self.terms.get(writer, 0.0) + terms
