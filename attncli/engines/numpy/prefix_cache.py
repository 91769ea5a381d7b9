"""The prefix cache: what was computed for the last texts, so that the next one computes only the rows that are new.

In a causal model the hidden states of a token follow from those before it, whatever stands behind. So of two texts that
begin alike the states of the beginning are the same, as in the key-value cache that models write with; here the queries
and the hidden states are cached too, because somebody looks at them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.engines.numpy.forward import Model, computing
from attncli.engines.numpy.ragged_batch import Group, GroupHeads, RaggedBatch, TokenIds
from attncli.masks.expressions import Atom, Expression, RuleMask, files_of
from attncli.trace.layer import LayerTrace

if TYPE_CHECKING:
    from jaxtyping import Float

_MOST = 2**29  # bytes that the states of one text may take, and those of one more layer
_TEXTS = 2  # whose states are cached: what is written, and what it is compared with


class LayerState(NamedTuple):
    """What enters a layer, and the queries, keys and values it makes of it, of a sentence that is alone."""

    x: Float[np.ndarray, "T E"]
    projected: list[GroupHeads]

    def first(self, rows: int) -> LayerState:
        """Return the state of the first rows."""
        group = Group((0,), rows, slice(0, rows))
        return LayerState(
            self.x[:rows], [GroupHeads(group, *(each[:, :rows] for each in one[1:])) for one in self.projected]
        )

    def extended(self, x: Float[np.ndarray, "t E"], projected: list[GroupHeads]) -> LayerState:
        """Return the state of these rows and of those after them."""
        heads = [
            GroupHeads(other.group, *(np.concatenate(both, axis=1) for both in zip(one[1:], other[1:], strict=True)))
            for one, other in zip(self.projected, projected, strict=True)
        ]
        return LayerState(np.concatenate([self.x, x]), heads)

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return self.x.nbytes + sum(each.nbytes for one in self.projected for each in one[1:])


@dataclass
class CachedPass:
    """The forward pass of one text, as far as it has come."""

    sentence: TokenIds  # the text
    mask: Expression | None  # in place of the model's own; None is that one
    states: dict[int, LayerState]  # of each layer that is known, those of its first rows, or of all

    @property
    def all_rows(self) -> int:
        """How many rows are known, of all layers together."""
        return sum(len(state.x) for state in self.states.values())

    def rows(self, layer: int) -> int:
        """Return how many rows of a layer are known."""
        return len(self.states[layer].x) if layer in self.states else 0

    def add(self, layer: int, state: LayerState) -> None:
        """Cache the state of a layer; where there is no more room, the highest of the others is let go."""
        self.states[layer] = state
        while len(self.states) > 1 and sum(each.nbytes for each in self.states.values()) > _MOST:
            del self.states[max(self.states.keys() - {layer})]

    def shared(self, sentence: TokenIds, mask: Expression | None, looks_back: bool) -> dict[int, LayerState]:
        """Return the states of this pass that are part of another text's too.

        What enters the first layer follows from a token and its place alone. What enters the others is the same as far
        as the tokens are, where the mask is the same and its queries look back; else where the whole text is the same.
        """
        embedded = _same_tokens(self.sentence, sentence)
        is_whole = embedded == len(sentence.ids) == len(self.sentence.ids)
        is_same = (mask is None or not files_of(mask)) and self.mask == mask and (looks_back or is_whole)
        rows = {layer: embedded if is_same or layer == 0 else 0 for layer in self.states}
        return {layer: state.first(rows[layer]) for layer, state in self.states.items() if rows[layer]}


class PrefixCache:
    """The forward passes of the last texts."""

    def __init__(self) -> None:
        self._passes: list[CachedPass] = []

    def record(
        self, model: Model, sentence: TokenIds, wanted: Sequence[int], heads: tuple[int, ...], mask: Expression | None
    ) -> list[LayerTrace]:
        """Return the wanted layers' attention to a sentence, computing only what is new; see `Model.record`.

        Raises:
            InputError: the mask does not fit the sentence.
        """
        record: list[LayerTrace] = []
        batch, layers = RaggedBatch([sentence]), model.layers(wanted, mask)
        tokens = batch.longest
        if mask is not None:
            RuleMask(mask, tokens, tokens, model.spec.heads.count).rows([0], np.arange(0))
        masks: list[Expression] = [mask] if mask is not None else [each.mask for each in model.spec.layers]
        looks_back = all(isinstance(each, Atom) and each.name in ("causal", "window") for each in masks)
        cached = self._begin(sentence, mask, looks_back)
        rows = [cached.rows(layer.index) for layer in layers]
        # The highest layer whose whole input is known, up to the first that is wanted: nothing below it is computed.
        start = max((index for index in range(min(wanted) + 1) if rows[index] == tokens), default=0)
        below = state = None
        with computing(tokens - min(rows[start:])):
            for layer in layers[start:]:
                before, past = cached.states.get(layer.index), cached.rows(layer.index)
                if before is None or past < tokens:
                    if below is None or state is None:
                        x = model.embed(batch, past)
                    else:
                        x = below.forward(state.x[past:], state.projected, past)
                    projected = layer.project_qkv(x, batch, past)
                    before = LayerState(x, projected) if before is None else before.extended(x, projected)
                    cached.add(layer.index, before)
                below, state = layer, before
                layer.record(state.projected, heads, [record])
        return record

    def _begin(self, sentence: TokenIds, mask: Expression | None, looks_back: bool) -> CachedPass:
        """Return the pass of a text, which knows what those before it share with it."""
        new, others = CachedPass(sentence, mask, {}), []
        for before in self._passes:
            shared = before.shared(sentence, mask, looks_back)
            for layer, state in shared.items():
                if len(state.x) > new.rows(layer):
                    new.states[layer] = state
            rows = sum(len(state.x) for state in shared.values())
            if rows < before.all_rows:  # else the new one knows all of it
                others.append((rows, before))
        if len(others) == _TEXTS:  # the new one takes the place of what was written before it
            others.remove(max(others, key=itemgetter(0)))
        self._passes = [*(before for _, before in others), new]
        return new


def _same_tokens(one: TokenIds, other: TokenIds) -> int:
    """Return how many of the first tokens two texts share."""
    ours, theirs = (np.array([each.ids, each.segments or [-1] * len(each.ids)]) for each in (one, other))
    most = min(ours.shape[1], theirs.shape[1])
    is_same = (ours[:, :most] == theirs[:, :most]).all(axis=0)
    return most if is_same.all() else int(is_same.argmin())
