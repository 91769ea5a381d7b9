"""Forward passes in which heads are cut: the layers are in `forward`, the changes between their steps here.

The sentence as it is, and a copy for each cut, are computed together: a layer's weights are read once for all. Below
its first layer a cut equals the sentence, and is not computed. Cuts that do not fit into memory wait for another pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attncli.attention import row_blocks
from attncli.checkpoints.checkpoint_folder import UnsupportedError
from attncli.engines.cpu import parallel_for
from attncli.engines.numpy.forward import GroupHeads, Layer, Model, RaggedBatch, TokenIds, computing
from attncli.engines.predictor import Cut, CutLogits, Logits, Replacement
from attncli.errors import NotExposedError
from attncli.masks.expressions import And, Expression, RuleMask
from attncli.text import visible

if TYPE_CHECKING:
    from jaxtyping import Float

    from attncli.encoding.encode import EncodedInput

    States = Float[np.ndarray, "N T E"]
    AllStates = Float[np.ndarray, "M T E"]  # of the cuts that begin too
    Outputs = Float[np.ndarray, "N T H D"]
    TextOutputs = Float[np.ndarray, "M T H D"]

_ALIVE = 2**25  # bytes of the hidden states of all cuts of a pass
_AT_WORK = 2**24  # bytes of a layer's intermediate results for some of them


def cut_logits(
    model: Model, sentence: EncodedInput, cuts: Sequence[Cut], replacement: Replacement, rows: Sequence[int]
) -> Iterator[CutLogits]:
    """Yield the logits of a sentence and of its cuts; see `attncli.engines.predictor.Predictor.run`."""
    texts = [TokenIds.of(sentence)]
    if replacement.reference is not None:
        texts.append(TokenIds.of(replacement.reference))
    tokens, begins = len(texts[0].ids), [min(cut) for cut in cuts]
    order = sorted(range(len(cuts)), key=begins.__getitem__)
    room = max(_ALIVE // (4 * tokens * model.spec.width), 1)
    for start in range(0, max(len(order), 1), room):
        group = order[start : start + room]
        try:
            with computing(tokens * (len(texts) + len(group))):
                states = model.embed(RaggedBatch(texts)).reshape(len(texts), tokens, -1)
                added = []
                for layer in model.layers(len(model.spec.layers) - 1, None):
                    with model.weights.held():
                        begun = [cuts[index] for index in group if begins[index] <= layer.index]
                        states, new = _CutLayer(layer, texts, replacement).forward(states, begun)
                        added.append(new)
                normed = model.normalize(model.unembedding.norm, states[:, rows])
        except UnsupportedError as error:
            raise NotExposedError(f"the native engine does not compute this text: {visible(str(error))}") from None
        direct = None
        if cuts and all(len(cut) == 1 for cut in cuts) and [*rows] == [tokens - 1]:
            gain = model.norm_gain(model.unembedding.norm, states[0, rows])
            parts = model.centered(np.concatenate(added)[:, None]) * gain
            direct = _unembedded(model, normed[0] - parts.astype(np.float32))
        yield CutLogits(group, _unembedded(model, np.delete(normed, range(1, len(texts)), axis=0)), direct)


def _unembedded(model: Model, normed: States) -> Logits:
    rows = normed.reshape(-1, normed.shape[-1])

    def logits(chunk: slice) -> Float[np.ndarray, "n V"]:
        with computing(len(rows)):
            return model.unembed(rows[chunk])

    return logits


class _CutLayer:
    """One layer, whose heads have other outputs in cuts."""

    def __init__(self, layer: Layer, texts: Sequence[TokenIds], replacement: Replacement) -> None:
        self._layer, self._texts, self._replacement = layer, texts, replacement

    def forward(self, states: States, cuts: Sequence[Cut]) -> tuple[AllStates, Float[np.ndarray, "C E"]]:
        """Return the layer's output, and the part of its last row that new cuts take away.

        Args:
            states: its input: that of the texts, then of the cuts that began below.
            cuts: all cuts so far; those without states begin here.
        """
        layer, count = self._layer, len(self._texts)
        begin = len(states) - count  # the first of the cuts that begin here
        states = np.concatenate([states, np.repeat(states[:1], len(cuts) - begin, axis=0)])
        left, added = np.empty_like(states), np.empty((len(cuts), states.shape[-1]), np.float32)
        uncut = self._heads(layer, self._projected(states[:count]))
        left[:count] = self._finish(states[:count], uncut)

        def compute(chunk: range) -> None:
            rows = slice(count + chunk.start, count + chunk.stop)
            projected = self._projected(states[rows])
            heads = self._heads(layer, projected)
            replaced = self._replaced(uncut, heads, projected)
            for outputs, values, cut in zip(heads, replaced, cuts[chunk.start : chunk.stop], strict=True):
                chosen = [*cut.get(layer.index, ())]
                outputs[:, chosen] = values[:, chosen]
            added[chunk.start : chunk.stop] = layer.added(uncut[0, -1:] - heads[:, -1:], uncut[0, -1:])[:, 0]
            left[rows] = self._finish(states[rows], heads)

        parallel_for(compute, self._ranges(len(cuts)))
        return left, added[begin:]

    def _ranges(self, cuts: int) -> list[range]:
        spec, tokens = self._layer.model.spec, len(self._texts[0].ids)
        numbers = 2 * spec.feed_forward.width + 4 * spec.width + 4 * spec.heads.count * spec.heads.width
        step = max(_AT_WORK // (4 * numbers * tokens), 1)
        return [range(first, min(first + step, cuts)) for first in range(0, cuts, step)]

    def _projected(self, states: States) -> list[GroupHeads]:
        # A user's mask may differ between heads, and sentences that share a group have one set of heads.
        batch = RaggedBatch([self._texts[0]] * len(states), share=self._replacement.edges is None)
        return self._layer.project_qkv(states.reshape(-1, states.shape[-1]), batch)

    def _heads(self, layer: Layer, projected: Sequence[GroupHeads]) -> Outputs:
        outputs = layer.head_outputs(projected)
        return outputs.reshape(-1, len(self._texts[0].ids), *outputs.shape[1:])

    def _finish(self, states: States, heads: Outputs) -> States:
        flat = states.reshape(-1, states.shape[-1])
        return self._layer.finish(flat, heads.reshape(len(flat), *heads.shape[2:])).reshape(states.shape)

    def _replaced(self, uncut: TextOutputs, heads: Outputs, projected: Sequence[GroupHeads]) -> Outputs:
        match self._replacement.by:
            case "zero":
                return np.zeros_like(heads)
            case "mean":
                return np.broadcast_to(uncut[0].mean(axis=0), heads.shape)
            case "text":
                return np.broadcast_to(uncut[1], heads.shape)
            case "edges":
                return self._restricted(projected)

    def _restricted(self, projected: Sequence[GroupHeads]) -> Outputs:
        """Return the outputs over the remaining edges; without any, a query's are zero."""
        layer, edges, tokens = self._layer, self._replacement.edges, len(self._texts[0].ids)
        assert edges is not None
        layer_mask: Expression = layer.model.spec.layers[layer.index].mask
        mask = And((layer_mask, edges))
        outputs = self._heads(replace(layer, mask=mask), projected)
        count = outputs.shape[2]
        rule = RuleMask(mask, tokens, tokens, count)
        for rows in row_blocks(np.arange(tokens), tokens):
            has_keys = np.asarray(rule.rows([*range(count)], rows).any(axis=-1))  # [H or 1, Q]
            outputs[:, rows] *= has_keys.T[..., None]
        return outputs
