"""Forward passes in which heads are cut: the layers are in `forward`, the changes between their steps here.

The sentence as it is, and a copy for each cut, are computed together: a layer's weights are read once for all. Up to
its first layer a cut equals the sentence, and is not computed. Cuts that do not fit into memory wait for another pass,
which begins at their first layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.attention import row_blocks
from attncli.engines.numpy.forward import Layer, Model, computing
from attncli.engines.numpy.parallel import parallel_for
from attncli.engines.numpy.ragged_batch import GroupHeads, RaggedBatch, TokenIds
from attncli.engines.predictor import Cut, Effects, Measure, Replacement
from attncli.masks.expressions import And, Expression, RuleMask

if TYPE_CHECKING:
    from jaxtyping import Float

    States = Float[np.ndarray, "N T E"]
    Outputs = Float[np.ndarray, "N T H D"]

_ALIVE = 2**25  # bytes of the hidden states of all cuts of a pass
_AT_WORK = 2**24  # bytes of a layer's intermediate results for some of them
_LOGITS = 2**22  # numbers


def effects(
    model: Model, texts: Sequence[TokenIds], cuts: Sequence[Cut], replacement: Replacement, measure: Measure
) -> Effects:
    """Return the effect of each cut on the prediction of the first text, whose reference may be the second.

    See `attncli.engines.predictor.Predictor.effects`.
    """
    ids = texts[0].ids
    rows = [target - 1 for target in measure.targets] or [len(ids) - 1]
    before, after, direct = np.nan, dict[int, float](), dict[int, float]()
    norm = model.unembedding.norm
    for order, states, added in _passes(model, texts, cuts, replacement, rows):
        with model.weights.held(), computing(states.shape[0] * states.shape[1]):
            normed = model.normalize(norm, states)
            if not measure.targets and measure.next is None:
                measure = measure._replace(next=int(model.unembed(normed[0])[0].argmax()))
            before, *values = _values(model, np.delete(normed, range(1, len(texts)), axis=0), ids, measure)
            after |= zip(order, values, strict=True)
            if added is not None and not measure.targets:
                parts = model.centered(added[:, None]) * model.norm_gain(norm, states[0])
                without = normed[0] - parts.astype(np.float32)
                direct |= zip(order, (before - value for value in _values(model, without, ids, measure)), strict=True)
    places = range(len(cuts))
    return Effects(measure, before, [after[index] for index in places], [direct.get(index) for index in places])


def next_logits(model: Model, text: TokenIds) -> Float[np.ndarray, " V"]:
    """Return the logit of every token of the vocabulary, next after a text."""
    (end,) = _passes(model, [text], [], Replacement(), [len(text.ids) - 1])
    logits: Float[np.ndarray, " V"] = model.logits(end.states[0])[0]
    return logits


def _values(model: Model, normed: States, ids: Sequence[int], measure: Measure) -> list[float]:
    """Return the measured values of hidden states after the final norm, in the rows that predict them."""
    count, rows, width = normed.shape
    wanted = np.tile([ids[target] for target in measure.targets] or measure.tokens[:1], count)
    flat, values = normed.reshape(-1, width), np.empty(count * rows)
    if measure.kind == "difference":
        logits = model.unembed(flat, measure.tokens)
        return [float(value) - float(other) for value, other in logits]
    step = max(_LOGITS // model.spec.embedding.tokens.rows, 1)
    for start in range(0, len(flat), step):
        block = slice(start, start + step)
        logits = model.unembed(flat[block])
        logits -= logits.max(axis=-1, keepdims=True)
        chosen = np.take_along_axis(logits, wanted[block, None], axis=-1)[:, 0]
        values[block] = chosen - np.log(np.exp(logits, out=logits).sum(axis=-1, dtype=np.float64))
    means = values.reshape(count, rows).mean(axis=1)
    return [float(-mean if measure.targets else mean) for mean in means]


class _End(NamedTuple):
    """Results of a pass."""

    order: list[int]  # the indices of its cuts
    states: States  # output of the last layer: the texts, then the cuts, in the rows that predict
    added: Float[np.ndarray, "C E"] | None  # sum that the heads of each cut add there; None for heads of many layers


def _passes(
    model: Model, texts: Sequence[TokenIds], cuts: Sequence[Cut], replacement: Replacement, rows: Sequence[int]
) -> Iterator[_End]:
    """Yield the results of passes that compute as many cuts together as fit into memory."""
    tokens, begins = len(texts[0].ids), [min(cut) for cut in cuts]
    order = sorted(range(len(cuts)), key=begins.__getitem__)
    room = max(_ALIVE // (4 * tokens * model.spec.width), 1)
    groups = [order[start : start + room] for start in range(0, len(order), room)] or [[]]
    starts = [0, *(begins[group[0]] for group in groups[1:])]
    is_single = all(len(cut) == 1 for cut in cuts)
    batch = RaggedBatch(texts)
    entering: dict[int, States] = {}  # input of a layer where a pass begins, for the texts
    for start, group in zip(starts, groups, strict=True):
        with computing(tokens * (len(texts) + len(group))):
            states = entering[start] if start in entering else model.embed(batch).reshape(len(texts), tokens, -1)
            added = []
            for layer in model.layers(range(len(model.spec.layers)), None)[start:]:
                if layer.index in starts:
                    entering[layer.index] = states[: len(texts)].copy()
                with model.weights.held():
                    begun = [cuts[index] for index in group if begins[index] <= layer.index]
                    states, new = _Step(layer, texts, replacement).forward(states, begun)
                    added.append(new)
        yield _End(group, states[:, rows], np.concatenate(added) if is_single and cuts else None)


class _Step(NamedTuple):
    """One layer, and the change to the outputs of its heads."""

    layer: Layer
    texts: Sequence[TokenIds]  # the sentence, and its reference if there is one
    replacement: Replacement  # of the outputs

    def forward(self, states: States, cuts: Sequence[Cut]) -> tuple[States, Float[np.ndarray, "C E"]]:
        """Return the layer's output, and the part of its last row that new cuts take away.

        Args:
            states: its input: that of the texts, then of the cuts that began below.
            cuts: all cuts so far; those without states begin here.
        """
        layer, index, count = self.layer, self.layer.index, len(self.texts)
        projected = self._projected(states[:count])
        whole = self._heads(layer, projected)
        restricted = None if self.replacement.edges is None else self._restricted(projected)
        left = np.empty((count + len(cuts), *states.shape[1:]), np.float32)
        left[:count] = self._finish(states[:count], whole)
        fresh = len(states) - count  # the first of the cuts that begin here

        def of_older(some: range) -> None:
            entering = states[count + some.start : count + some.stop]
            projected = self._projected(entering)
            heads = self._heads(layer, projected)
            if any(index in cuts[place] for place in some):
                own = None if restricted is None else self._restricted(projected)
                for number, place in enumerate(some):
                    self._cut(heads[number], cuts[place], whole, None if own is None else own[number])
            left[count + some.start : count + some.stop] = self._finish(entering, heads)

        def of_new(some: range) -> None:
            heads = np.repeat(whole[:1], len(some), axis=0)
            for number, place in enumerate(some):
                self._cut(heads[number], cuts[place], whole, None if restricted is None else restricted[0])
            left[count + some.start : count + some.stop] = self._finish(np.repeat(states[:1], len(some), axis=0), heads)
            taken[some.start - fresh : some.stop - fresh] = layer.added(whole[0, -1:] - heads[:, -1:], whole[0, -1:])[
                :, 0
            ]

        taken = np.empty((len(cuts) - fresh, states.shape[-1]), np.float32)
        parallel_for(of_older, self._ranges(0, fresh))
        parallel_for(of_new, self._ranges(fresh, len(cuts)))
        return left, taken

    def _ranges(self, start: int, stop: int) -> list[range]:
        """Return the ranges of cuts that are computed together."""
        spec, tokens = self.layer.model.spec, len(self.texts[0].ids)
        numbers = 2 * spec.feed_forward.width + 4 * spec.width + 4 * spec.heads.count * spec.heads.width
        step = max(_AT_WORK // (4 * numbers * tokens), 1)
        return [range(first, min(first + step, stop)) for first in range(start, stop, step)]

    def _projected(self, states: States) -> list[GroupHeads]:
        # A user's mask may differ between heads, and sentences that share a group have one set of heads.
        batch = RaggedBatch([self.texts[0]] * len(states), share=self.replacement.edges is None)
        return self.layer.project_qkv(states.reshape(-1, states.shape[-1]), batch)

    def _heads(self, layer: Layer, projected: Sequence[GroupHeads]) -> Outputs:
        outputs = layer.head_outputs(projected)
        return outputs.reshape(-1, len(self.texts[0].ids), *outputs.shape[1:])

    def _finish(self, states: States, heads: Outputs) -> States:
        flat = states.reshape(-1, states.shape[-1])
        return self.layer.finish(flat, heads.reshape(len(flat), *heads.shape[2:])).reshape(states.shape)

    def _restricted(self, projected: Sequence[GroupHeads]) -> Outputs:
        """Return the outputs over the remaining edges; without any, a query's are zero."""
        layer, edges, tokens = self.layer, self.replacement.edges, len(self.texts[0].ids)
        assert edges is not None
        mask_of_layer: Expression = layer.model.spec.layers[layer.index].mask
        mask = And((mask_of_layer, edges))
        outputs = self._heads(replace(layer, mask=mask), projected)
        count = outputs.shape[2]
        every, rule = list(range(count)), RuleMask(mask, tokens, tokens, count)
        for rows in row_blocks(np.arange(tokens), tokens):
            has_keys = np.asarray(rule.rows(every, rows).any(axis=-1))  # [H or 1, Q]
            outputs[:, rows] *= has_keys.T[..., None]
        return outputs

    def _cut(self, heads: Float[np.ndarray, "T H D"], cut: Cut, whole: Outputs, own: Outputs | None) -> None:
        """Replace the outputs of a cut's heads in this layer, if it has any here."""
        chosen = list(cut.get(self.layer.index, ()))
        match self.replacement.by:
            case "zero":
                heads[:, chosen] = 0
            case "mean":
                heads[:, chosen] = whole[0][:, chosen].mean(axis=0)
            case "text":
                heads[:, chosen] = whole[1][:, chosen]
            case "edges":
                assert own is not None
                heads[:, chosen] = own[:, chosen]
