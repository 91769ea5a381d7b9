"""A forward pass in NumPy: from token ids to the Q, K, V and mask of the wanted layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from attncli.masks.expressions import Atom, Expression, RuleMask
from attncli.sources.native.functions import linear, rotated
from attncli.sources.native.recipe import LookupTable, Recipe, Residual
from attncli.sources.native.weights import Weights
from attncli.trace.layer import Deferred, LayerTrace, stages_of

if TYPE_CHECKING:
    from jaxtyping import Float

    Hidden = Float[np.ndarray, "T E"]

_FILL = float(np.finfo(np.float32).min)  # what models add to a score that is masked


@dataclass(frozen=True)
class Model:
    """A recipe with its weights.

    Attributes:
        recipe: how it is put together.
        weights: its tensors.
    """

    recipe: Recipe
    weights: Weights

    def multiply_adds(self, tokens: int, last: int) -> int:
        """Return how many multiply-adds lead to the queries, keys and values of a layer."""
        heads = self.recipe.heads
        projected = self.recipe.width * (heads.count + 2 * heads.groups) * heads.width
        passed = self._layer_elements + 2 * tokens * heads.count * heads.width
        return tokens * (last * passed + projected)

    @cached_property
    def _layer_elements(self) -> int:
        return self.weights.elements(self.recipe.layer.format(0))

    def layers(
        self,
        ids: Sequence[int],
        segments: Sequence[int] | None,
        wanted: Sequence[int],
        heads: tuple[int, ...],
        mask: Expression | None,
        values: bool = True,
    ) -> list[LayerTrace]:
        """Return the wanted layers' attention to one sentence, in the order of the layers.

        Args:
            ids: of its tokens.
            segments: which of two texts each belongs to; None where the tokenizer does not say.
            wanted: indices of layers.
            heads: the heads that were asked for.
            mask: in place of the model's own; None is that one.
            values: whether those of the last layer are made now, or when they are read; the next layer needs those of
                the others.
        """
        found = []
        last = max(wanted)
        # An overflow shows in the end: the numbers are not finite.
        with np.errstate(all="ignore"):
            x = self._embedded(ids, segments)
            for index in range(last + 1):
                layer = _Layer(self, index)
                trace = layer.attention(x, heads, mask, values or index < last)
                if index in wanted:
                    found.append(trace)
                if index < last:
                    x = layer.passed_on(x, trace)
        return found

    def _embedded(self, ids: Sequence[int], segments: Sequence[int] | None) -> Hidden:
        how = self.recipe.embedding

        def rows(table: LookupTable, indices: Sequence[int]) -> Hidden:
            return self.weights.rows(table.name + ".weight", indices, table.rows, how.width)

        x = rows(how.tokens, ids)
        if how.scale != 1:
            x = x * np.float32(how.scale)
        if segments is None and how.segment is not None:
            segments = [how.segment] * len(ids)
        if how.segments is not None and segments is not None:
            x = x + rows(how.segments, segments)
        if how.positions is not None:
            x = x + rows(how.positions, _positions(ids, how.padding_id))
        if how.norm is not None:
            x = self.normed(how.norm, x)
        return x if how.projection is None else self.projected(how.projection, x, self.recipe.width, has_bias=True)

    def normed(self, name: str, x: Float[np.ndarray, " ..."]) -> Float[np.ndarray, " ..."]:
        """Return hidden states after one of the model's normalizations."""
        norm, width = self.recipe.norm, x.shape[-1]
        weight = self.weights.vector(name + ".weight", width)
        if norm.offset:
            weight = weight + np.float32(norm.offset)
        bias = (self.weights.vector(name + ".bias", width),) if norm.has_bias else ()
        return norm.function(x, weight, *bias, norm.eps)

    def projected(
        self, name: str, x: Hidden, width: int, has_bias: bool, is_transposed: bool = False
    ) -> Float[np.ndarray, "T F"]:
        """Return x·Wᵀ, or x·Wᵀ + b."""
        shape = _stored_shape(x, width, is_transposed)
        weight = self.weights.matrix(name + ".weight", *shape)
        bias = self.weights.vector(name + ".bias", width) if has_bias else None
        return linear(x, weight.T if is_transposed else weight, bias)


@dataclass(frozen=True)
class _Layer:
    """One layer of a model."""

    model: Model
    index: int

    @property
    def _recipe(self) -> Recipe:
        return self.model.recipe

    def _name(self, name: str) -> str:
        return self._recipe.layer.format(self.index) + name

    def _check_projected(self, name: str, x: Hidden, width: int, has_bias: bool) -> None:
        """Make sure that tensors which are read later are there, and have their shapes."""
        weights, name = self.model.weights, self._name(name)
        weights.check(name + ".weight", *_stored_shape(x, width, self._recipe.projections.is_transposed))
        if has_bias:
            weights.check(name + ".bias", width)

    def _projected(self, name: str, x: Hidden, width: int, has_bias: bool) -> Float[np.ndarray, "T F"]:
        return self.model.projected(self._name(name), x, width, has_bias, self._recipe.projections.is_transposed)

    def attention(self, x: Hidden, heads: tuple[int, ...], mask: Expression | None, values: bool) -> LayerTrace:
        """Return the layer's attention to its hidden states; see `Model.layers`."""
        recipe = self._recipe
        how = recipe.layers[self.index]
        query, key, value = self._queries_keys_values(self._before(recipe.attention_residual, x), values)
        if (rope := how.rope) is not None:
            angles = rope.angles(len(x))
            query, key = rotated(query, angles, rope.length), rotated(key, angles, rope.length)
        return LayerTrace(
            layer=self.index,
            kind="self",
            q=query,
            k=key,
            v=value,
            scale=how.scale,
            mask=RuleMask(mask or _simplest(how.mask, len(x)), len(x), len(x), recipe.heads.count),
            heads=heads,
            softcap=recipe.softcap,
            fill=_FILL,
        )

    def passed_on(self, x: Hidden, trace: LayerTrace) -> Hidden:
        """Return the hidden states that leave the layer."""
        recipe = self._recipe
        attended = np.empty((len(x), recipe.heads.count, recipe.heads.width), np.float32)
        for stages in stages_of(trace, range(recipe.heads.count), np.arange(len(x))):
            attended[stages.queries, stages.heads[0] : stages.heads[-1] + 1] = stages.output.transpose(1, 0, 2)
        how, concatenated = recipe.projections, attended.reshape(len(x), -1)
        output = self._projected(how.output, concatenated, recipe.width, how.output_has_bias)
        if recipe.is_parallel:
            return x + output + self._fed_forward(self._before(recipe.feed_forward_residual, x))
        x = self._added(recipe.attention_residual, x, output)
        output = self._fed_forward(self._before(recipe.feed_forward_residual, x))
        return self._added(recipe.feed_forward_residual, x, output)

    def _queries_keys_values(
        self, x: Hidden, values: bool
    ) -> tuple[Float[np.ndarray, "H T D"], Float[np.ndarray, "Hkv T D"], Float[np.ndarray, "Hkv T D"] | Deferred]:
        recipe, how = self._recipe, self._recipe.projections
        width = recipe.heads.width
        if how.joint:
            joint = self._projected(how.joint, x, 3 * recipe.heads.count * width, how.has_bias)
            shape = (len(x), recipe.heads.count, 3, width) if how.is_by_head else (len(x), 3, recipe.heads.count, width)
            apart = joint.reshape(shape).transpose((2, 1, 0, 3) if how.is_by_head else (1, 2, 0, 3))
            query, key, value = (np.ascontiguousarray(part) for part in apart)
            return query, key, value
        query = self._of_heads(how.query, how.query_norm, x, recipe.heads.count)
        key = self._of_heads(how.key, how.key_norm, x, recipe.heads.groups)
        if values:
            return query, key, self._values(x)
        self._check_projected(how.value, x, recipe.heads.groups * width, how.has_bias)
        return query, key, Deferred((recipe.heads.groups, len(x), width), partial(self._values, x))

    def _values(self, x: Hidden) -> Float[np.ndarray, "Hkv T D"]:
        with np.errstate(all="ignore"):  # as in `Model.layers`, which may be over
            return self._of_heads(self._recipe.projections.value, "", x, self._recipe.heads.groups)

    def _of_heads(self, name: str, norm: str, x: Hidden, heads: int) -> Float[np.ndarray, "H T D"]:
        how = self._recipe.projections
        projected = self._projected(name, x, heads * self._recipe.heads.width, how.has_bias)
        if norm and how.normed_whole:
            projected = self.model.normed(self._name(norm), projected)
        apart = projected.reshape(len(x), heads, self._recipe.heads.width)
        if norm and not how.normed_whole:
            apart = self.model.normed(self._name(norm), apart)
        return np.ascontiguousarray(apart.transpose(1, 0, 2))

    def _fed_forward(self, x: Hidden) -> Hidden:
        how = self._recipe.feed_forward
        hidden = how.activation(self._projected(how.gate or how.up, x, how.width, how.has_bias))
        if how.gate:
            hidden = hidden * self._projected(how.up, x, how.width, how.has_bias)
        return self._projected(how.down, hidden, self._recipe.width, how.has_bias)

    def _before(self, residual: Residual, x: Hidden) -> Hidden:
        return x if residual.before is None else self.model.normed(self._name(residual.before), x)

    def _added(self, residual: Residual, x: Hidden, output: Hidden) -> Hidden:
        if residual.after is not None:
            output = self.model.normed(self._name(residual.after), output)
        x = x + output
        return x if residual.of_sum is None else self.model.normed(self._name(residual.of_sum), x)


def _stored_shape(x: Hidden, width: int, is_transposed: bool) -> tuple[int, int]:
    """Return the shape of a matrix that leads from hidden states to others of a width."""
    return (x.shape[-1], width) if is_transposed else (width, x.shape[-1])


def _positions(ids: Sequence[int], padding_id: int | None) -> list[int]:
    """Return the position of each token; see `Embedding.padding_id`."""
    if padding_id is None:
        return list(range(len(ids)))
    is_text = np.asarray(ids) != padding_id
    return (is_text.cumsum() * is_text + padding_id).tolist()


def _simplest(mask: Atom, tokens: int) -> Atom:
    """Return the simplest mask that is the same for so many tokens."""
    if tokens == 1:
        return Atom("full")
    return Atom("causal") if mask.name == "window" and mask.arguments[0] >= tokens else mask
