"""The prefix cache: what was computed for the last texts, so that the next one computes only the rows that are new.

In a causal model the hidden states of a token follow from those before it, whatever stands behind. So of two texts that
begin alike the states of the beginning are the same, as in the key-value cache that models write with; here the queries
and the hidden states are cached too, because somebody looks at them. What is reused is decided by what was computed
(token ids, segments, the cells of the masks), never by how it was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.attention import row_blocks
from attncli.engines.numpy.forward import Model, computing
from attncli.engines.numpy.ragged_batch import Group, GroupHeads, RaggedBatch, TokenIds
from attncli.masks.expressions import Atom, Expression, RuleMask
from attncli.trace.layer import LayerTrace

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

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
        return self.x.nbytes + sum(np.asarray(each).nbytes for one in self.projected for each in one[1:])


class CachedPass:
    """The forward pass of one text, as far as it has come.

    Attributes:
        states: of each layer that is known, those of its first rows, or of all.
    """

    def __init__(self, sentence: TokenIds, masks: Sequence[RuleMask], states: dict[int, LayerState]) -> None:
        self._sentence = sentence
        self._masks = masks
        self.states = states

    def rows(self, layer: int) -> int:
        """Return how many rows of a layer are known."""
        return len(self.states[layer].x) if layer in self.states else 0

    @property
    def all_rows(self) -> int:
        """How many rows are known, of all layers together."""
        return sum(len(state.x) for state in self.states.values())

    def add(self, layer: int, state: LayerState) -> None:
        """Cache the state of a layer; where there is no more room, the highest of the others is let go."""
        self.states[layer] = state
        while len(self.states) > 1 and sum(each.nbytes for each in self.states.values()) > _MOST:
            del self.states[max(self.states.keys() - {layer})]

    def shared(self, sentence: TokenIds, masks: Sequence[RuleMask]) -> CachedPass:
        """Return what of this pass is part of another text's too.

        What enters the first layer follows from a token and its place alone. What enters the others is the same as far
        as the tokens are, and every query sees the same keys, which are among them.
        """
        embedded = passed = _same_tokens(self._sentence, sentence)
        pairs = {
            (id(mine.expression), id(its.expression)): (mine, its) for mine, its in zip(self._masks, masks, strict=True)
        }
        for mine, its in pairs.values():
            passed = min(passed, common_prefix(mine, its, passed))
        shared = {layer: state.first(passed if layer else embedded) for layer, state in self.states.items()}
        return CachedPass(sentence, masks, {layer: state for layer, state in shared.items() if len(state.x)})


class PrefixCache:
    """The forward passes of the last texts."""

    def __init__(self) -> None:
        self._passes: list[CachedPass] = []

    def record(
        self,
        model: Model,
        sentence: TokenIds,
        wanted: Sequence[int],
        heads: tuple[int, ...],
        mask: Expression | None,
        values: bool = True,
    ) -> list[LayerTrace]:
        """Return the wanted layers' attention to a sentence, computing only what is new; see `Model.record`."""
        record: list[LayerTrace] = []
        batch, layers = RaggedBatch([sentence]), model.layers(wanted, mask, values)
        tokens = batch.longest
        masks = [RuleMask(mask or how.mask, tokens, tokens, model.spec.heads.count) for how in model.spec.layers]
        cached = self.begin(sentence, masks)
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

    def begin(self, sentence: TokenIds, masks: Sequence[RuleMask]) -> CachedPass:
        """Return the pass of a text, which knows what those before it share with it.

        Args:
            sentence: what is read.
            masks: of every layer of the model.

        Raises:
            InputError: a mask does not fit the sentence.
        """
        for mask in masks:
            mask.rows([0], np.arange(0))
        new, others = CachedPass(sentence, masks, {}), []
        for before in self._passes:
            shared = before.shared(sentence, masks)
            for layer, state in shared.states.items():
                if layer not in new.states or len(state.x) > len(new.states[layer].x):
                    new.states[layer] = state
            if shared.all_rows < before.all_rows:  # else the new one knows all of it
                others.append((shared.all_rows, before))
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


def common_prefix(one: RuleMask, other: RuleMask, rows: int) -> int:
    """Return how many of the first rows see the same keys under two masks, all of them among these rows.

    A query that may attend to nothing counts as one that sees every key: a finite number is added to all of its scores,
    and the softmax is left with equal ones.

    Args:
        one: of a text.
        other: of a text that begins with the same tokens.
        rows: how many these are.
    """
    if _looks_back(one.expression) and _looks_back(other.expression) and one.expression == other.expression:
        return rows
    keys, heads = min(one.keys, other.keys), list(range(one.heads))
    ends = np.full(rows, np.iinfo(int).max)  # of each row, the place behind the last key that it sees
    for some in row_blocks(np.arange(rows), max(one.keys, other.keys) * one.heads):
        mine, its = _seen(one, heads, some), _seen(other, heads, some)
        is_same = (mine[..., :keys] == its[..., :keys]).all(axis=(0, 2))
        is_same &= ~mine[..., keys:].any(axis=(0, 2)) & ~its[..., keys:].any(axis=(0, 2))
        last = keys - np.logical_or.reduce(mine[..., :keys])[:, ::-1].argmax(axis=-1)
        ends[some] = np.where(is_same, last, ends[some])
    fit = np.flatnonzero(np.maximum.accumulate(ends) <= np.arange(1, rows + 1))
    return int(fit[-1]) + 1 if len(fit) else 0


def _looks_back(expression: Expression) -> bool:
    """Return whether a query sees the same keys whatever stands behind it, and its own among them."""
    return isinstance(expression, Atom) and expression.name in ("causal", "window")


def _seen(mask: RuleMask, heads: list[int], queries: Int[np.ndarray, " Q"]) -> Bool[np.ndarray, "#H Q K"]:
    allowed = mask.rows(heads, queries)
    return allowed | ~allowed.any(axis=-1, keepdims=True)
