"""A forward pass in NumPy: from token ids to the Q, K, V and mask of the wanted layers, of many sentences at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from attncli.engines.numpy.attention_forward import attended
from attncli.engines.numpy.model_spec import LookupTable, Recipe, Residual
from attncli.engines.numpy.ops import linear, rotated
from attncli.engines.numpy.parallel import on_cores
from attncli.engines.numpy.prefix_cache import Heads, Kept, State
from attncli.engines.numpy.ragged_batch import Group, Inputs, grouped
from attncli.engines.numpy.weights import Weights
from attncli.masks.expressions import Atom, Expression, RuleMask
from attncli.trace.layer import Deferred, LayerTrace

if TYPE_CHECKING:
    from jaxtyping import Float

    Hidden = Float[np.ndarray, "T E"]
    Queries = Float[np.ndarray, "T H D"]
    Keys = Float[np.ndarray, "T Hkv D"]

_FILL = float(np.finfo(np.float32).min)  # what models add to a score that is masked

# Bytes of a pack: what is kept of it for its traces, and what is at work. Larger ones are hardly faster.
_PACK = 2**26


@dataclass(frozen=True)
class Model:
    """A recipe with its weights.

    Attributes:
        recipe: how it is put together.
        weights: its tensors.
    """

    recipe: Recipe
    weights: Weights

    @cached_property
    def pack(self) -> int:
        """How many tokens of several sentences are computed together at most; the model's widths alone say it."""
        recipe, heads = self.recipe, self.recipe.heads
        kept = len(recipe.layers) * (heads.count + 2 * heads.groups) * heads.width
        return _PACK // (4 * (kept + 2 * recipe.feed_forward.width + 4 * recipe.width))

    def layers(
        self,
        sentences: Sequence[Inputs],
        wanted: Sequence[int],
        heads: tuple[int, ...],
        mask: Expression | None,
        values: bool = True,
        kept: Kept | None = None,
    ) -> list[list[LayerTrace]]:
        """Return the wanted layers' attention to each sentence, in the order of the layers.

        Args:
            sentences: at least one; their tokens are laid end to end.
            wanted: indices of layers.
            heads: the heads that were asked for.
            mask: in place of the model's own; None is that one.
            values: whether those of the last layer are made now, or when they are read; the next layer needs those of
                the others.
            kept: what was computed before, of which nothing is computed again, and where this is kept too; it takes a
                sentence that is alone.
        """
        found: list[list[LayerTrace]] = [[] for _ in sentences]
        last = max(wanted)
        # A mask that was given may tell heads apart, which those of several sentences are not.
        groups = grouped([len(each.ids) for each in sentences], together=mask is None)
        tokens = groups[-1].tokens  # of the longest sentence
        going = None if kept is None else kept.begin(sentences[0], self._masks(mask, tokens))
        known = {} if going is None else going.states
        whole = [index for index, state in known.items() if len(state.x) == tokens]
        steps = range(max((index for index in whole if index <= min(wanted)), default=0), last + 1)
        most = max(tokens - (len(known[index].x) if index in known else 0) for index in steps)
        state = below = None
        # An overflow shows in the end: the numbers are not finite.
        with np.errstate(all="ignore"), on_cores(most):
            for index in steps:
                layer = _Layer(self, index, mask)
                before = known.get(index)
                if before is not None and len(before.x) == tokens:
                    state = before
                else:
                    first = 0 if before is None else len(before.x)
                    if state is None or below is None:
                        x = self._embedded([sentences[index] for group in groups for index in group.sentences], first)
                    else:
                        x = below.passed_on(state, first)
                    state = layer.entered(x, groups, values or index < last, before)
                    if going is not None:
                        going.keep(index, state)
                if index in wanted:
                    for each in state.heads:
                        for sentence, trace in layer.traces(each, heads):
                            found[sentence].append(trace)
                below = layer
        return found

    def _masks(self, mask: Expression | None, tokens: int) -> list[RuleMask]:
        """Return the mask of every layer over so many tokens."""
        return [RuleMask(mask or how.mask, tokens, tokens, self.recipe.heads.count) for how in self.recipe.layers]

    def _embedded(self, sentences: Sequence[Inputs], first: int) -> Hidden:
        """Return the first hidden states of sentences, end to end, from a row on."""
        how = self.recipe.embedding

        def rows(table: LookupTable, indices: Iterable[Iterable[int]]) -> Hidden:
            every = list(chain.from_iterable(indices))
            return self.weights.rows(table.name + ".weight", every[first:], table.rows, how.width)

        x = rows(how.tokens, (each.ids for each in sentences))
        if how.scale != 1:
            x = x * np.float32(how.scale)
        said = sentences[0].segments is not None  # by the tokenizer, of every sentence or of none
        if how.segments is not None and (said or how.segment is not None):
            x = x + rows(how.segments, (each.segments or [how.segment or 0] * len(each.ids) for each in sentences))
        if how.positions is not None:
            x = x + rows(how.positions, (_positions(each.ids, how.padding_id) for each in sentences))
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
    """One layer of a model, and the mask in place of its own."""

    model: Model
    index: int
    mask: Expression | None

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

    def entered(self, x: Hidden, groups: Sequence[Group], values: bool, before: State | None) -> State:
        """Return hidden states with the queries, keys and values of each group of sentences; see `Model.layers`.

        Args:
            x: hidden states.
            groups: of the sentences.
            values: whether they are made now.
            before: the state of the rows before these.
        """
        query, key, value = self._queries_keys_values(self._before(self._recipe.attention_residual, x), values)
        first = 0 if before is None else len(before.x)
        state = State(x, [self._of_group(group, first, query, key, value) for group in groups])
        return state if before is None else before.joined(state)

    def _of_group(self, group: Group, first: int, query: Queries, key: Keys, value: Keys | Deferred) -> Heads:
        rest = group.rest(first)
        q, k = rest.apart(query), rest.apart(key)
        if (rope := self._recipe.layers[self.index].rope) is not None:
            angles = rope.angles(group.tokens)[first:]
            q, k = rotated(q, angles, rope.length), rotated(k, angles, rope.length)
        if isinstance(value, Deferred):
            return Heads(group, q, k, Deferred(k.shape, lambda: rest.apart(value[:])))
        return Heads(group, q, k, rest.apart(value))

    def traces(self, of: Heads, heads: tuple[int, ...]) -> Iterator[tuple[int, LayerTrace]]:
        """Yield the attention of each sentence of a group, with its place in the pack."""
        count, groups = self._recipe.heads.count, self._recipe.heads.groups
        for place, sentence in enumerate(of.group.sentences):
            q = of.q[place * count : (place + 1) * count]
            own = slice(place * groups, (place + 1) * groups)
            v = Deferred(of.k[own].shape, partial(of.v.__getitem__, own)) if isinstance(of.v, Deferred) else of.v[own]
            yield sentence, self._trace(q, of.k[own], v, heads)

    def _trace(
        self,
        q: Float[np.ndarray, "H T D"],
        k: Float[np.ndarray, "Hkv T D"],
        v: Float[np.ndarray, "Hkv T D"] | Deferred,
        heads: tuple[int, ...],
    ) -> LayerTrace:
        how, (count, tokens) = self._recipe.layers[self.index], q.shape[:2]
        return LayerTrace(
            layer=self.index,
            kind="self",
            q=q,
            k=k,
            v=v,
            scale=how.scale,
            mask=RuleMask(self.mask or _simplest(how.mask, tokens), tokens, tokens, count),
            heads=heads,
            softcap=self._recipe.softcap,
            fill=_FILL,
        )

    def passed_on(self, state: State, first: int) -> Hidden:
        """Return the hidden states that leave the layer, from a row on."""
        recipe, how = self._recipe, self._recipe.projections
        x = state.x[first:]
        concatenated = np.empty((len(x), recipe.heads.count, recipe.heads.width), np.float32)
        for each in state.heads:
            each.group.rest(first).lay(attended(self._trace(each.q, each.k, each.v, ()), first), concatenated)
        output = self._projected(how.output, concatenated.reshape(len(x), -1), recipe.width, how.output_has_bias)
        if recipe.is_parallel:
            output += x
            output += self._fed_forward(self._before(recipe.feed_forward_residual, x))
            return output
        x = self._added(recipe.attention_residual, x, output)
        output = self._fed_forward(self._before(recipe.feed_forward_residual, x))
        return self._added(recipe.feed_forward_residual, x, output)

    def _queries_keys_values(self, x: Hidden, values: bool) -> tuple[Queries, Keys, Keys | Deferred]:
        recipe, how = self._recipe, self._recipe.projections
        width = recipe.heads.width
        if how.joint:
            joint = self._projected(how.joint, x, 3 * recipe.heads.count * width, how.has_bias)
            if how.is_by_head:
                apart = joint.reshape(len(x), recipe.heads.count, 3, width).transpose(2, 0, 1, 3)
            else:
                apart = joint.reshape(len(x), 3, recipe.heads.count, width).transpose(1, 0, 2, 3)
            return apart[0], apart[1], apart[2]
        query = self._of_heads(how.query, how.query_norm, x, recipe.heads.count)
        key = self._of_heads(how.key, how.key_norm, x, recipe.heads.groups)
        if values:
            return query, key, self._values(x)
        self._check_projected(how.value, x, recipe.heads.groups * width, how.has_bias)
        return query, key, Deferred(key.shape, partial(self._values, x))

    def _values(self, x: Hidden) -> Keys:
        with np.errstate(all="ignore"):  # as in `Model.layers`, which may be over
            return self._of_heads(self._recipe.projections.value, "", x, self._recipe.heads.groups)

    def _of_heads(self, name: str, norm: str, x: Hidden, heads: int) -> Queries:
        how = self._recipe.projections
        projected = self._projected(name, x, heads * self._recipe.heads.width, how.has_bias)
        if norm and how.normed_whole:
            projected = self.model.normed(self._name(norm), projected)
        apart = projected.reshape(len(x), heads, self._recipe.heads.width)
        return self.model.normed(self._name(norm), apart) if norm and not how.normed_whole else apart

    def _fed_forward(self, x: Hidden) -> Hidden:
        how = self._recipe.feed_forward
        hidden = how.activation(self._projected(how.gate or how.up, x, how.width, how.has_bias))
        if how.gate:
            hidden *= self._projected(how.up, x, how.width, how.has_bias)
        return self._projected(how.down, hidden, self._recipe.width, how.has_bias)

    def _before(self, residual: Residual, x: Hidden) -> Hidden:
        return x if residual.before is None else self.model.normed(self._name(residual.before), x)

    def _added(self, residual: Residual, x: Hidden, output: Hidden) -> Hidden:
        """Return the sum of hidden states and what a sublayer made of them, which is changed."""
        if residual.after is not None:
            output = self.model.normed(self._name(residual.after), output)
        output += x
        return output if residual.of_sum is None else self.model.normed(self._name(residual.of_sum), output)


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
