"""The prefix cache: results of the last texts, so that only new rows of the next one are computed.

In a causal model the hidden states of a token depend only on those before it. So two texts with the same beginning
share its states, as in the key-value cache of generation; here the queries and the hidden states are cached too, as
they are shown.
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

_MOST = 2**29  # bytes of the states of one text, and of one more layer
_TEXTS = 2  # texts in the cache: the current one, and one to compare it with


class LayerState(NamedTuple):
    """Input of a layer, and its queries, keys and values, for a sentence that is alone."""

    x: Float[np.ndarray, "T E"]
    projected: list[GroupHeads]

    def first(self, rows: int) -> LayerState:
        """Return the state of the first rows."""
        group = Group((0,), rows, slice(0, rows))
        return LayerState(
            self.x[:rows], [GroupHeads(group, *(array[:, :rows] for array in heads[1:])) for heads in self.projected]
        )

    def extended(self, x: Float[np.ndarray, "t E"], projected: list[GroupHeads]) -> LayerState:
        """Return the state of these rows and of those after them."""
        heads = [
            GroupHeads(after.group, *(np.concatenate(both, axis=1) for both in zip(before[1:], after[1:], strict=True)))
            for before, after in zip(self.projected, projected, strict=True)
        ]
        return LayerState(np.concatenate([self.x, x]), heads)

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        return self.x.nbytes + sum(array.nbytes for heads in self.projected for array in heads[1:])


@dataclass
class CachedPass:
    """The forward pass of one text, as far as it is computed."""

    sentence: TokenIds  # the text
    mask: Expression | None  # replaces the model's own; None is that one
    states: dict[int, LayerState]  # of each computed layer, for its first rows or for all

    @property
    def all_rows(self) -> int:
        """Number of computed rows, of all layers together."""
        return sum(len(state.x) for state in self.states.values())

    def rows(self, layer: int) -> int:
        """Return the number of computed rows of a layer."""
        return len(self.states[layer].x) if layer in self.states else 0

    def add(self, layer: int, state: LayerState) -> None:
        """Cache the state of a layer; where there is no more room, that of the highest other layer is dropped."""
        self.states[layer] = state
        while len(self.states) > 1 and sum(each.nbytes for each in self.states.values()) > _MOST:
            del self.states[max(self.states.keys() - {layer})]

    def shared(self, sentence: TokenIds, mask: Expression | None, looks_back: bool) -> dict[int, LayerState]:
        """Return the states of this pass that another text shares.

        The input of the first layer depends on a token and its position alone. That of the others is shared as far as
        the tokens are, where the mask is the same and its queries look back; else where the whole text is the same.
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
        """Return the wanted layers' attention to a sentence, computing only new rows; see `Model.record`.

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
        # The highest layer with its whole input, up to the first wanted one: nothing below it is computed.
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
        """Return the pass of a text, with the states that it shares with those before it."""
        new, passes = CachedPass(sentence, mask, {}), []
        for before in self._passes:
            shared = before.shared(sentence, mask, looks_back)
            for layer, state in shared.items():
                if len(state.x) > new.rows(layer):
                    new.states[layer] = state
            rows = sum(len(state.x) for state in shared.values())
            if rows < before.all_rows:  # else the new one has all of it
                passes.append((rows, before))
        if len(passes) == _TEXTS:  # the new one replaces the last text
            passes.remove(max(passes, key=itemgetter(0)))
        self._passes = [*(before for _, before in passes), new]
        return new


def _same_tokens(one: TokenIds, other: TokenIds) -> int:
    """Return how many tokens at the beginning two texts share."""
    ours, theirs = (np.array([text.ids, text.segments or [-1] * len(text.ids)]) for text in (one, other))
    most = min(ours.shape[1], theirs.shape[1])
    is_same = (ours[:, :most] == theirs[:, :most]).all(axis=0)
    return most if is_same.all() else int(is_same.argmin())
