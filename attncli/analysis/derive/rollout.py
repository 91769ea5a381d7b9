"""Attention rollout: what a token of a layer has taken from the tokens of the sentence, through all layers below."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

import numpy as np

from attncli.analysis.derive.layer import derived_layer
from attncli.attention import row_blocks
from attncli.errors import NotExposedError, UsageError
from attncli.masks.expressions import smallest
from attncli.trace.layer import LayerTrace, Stages

if TYPE_CHECKING:
    from jaxtyping import Float

    from attncli.analysis.derive.layer import Rows


def rolled_out(layers: tuple[LayerTrace, ...], wanted: tuple[int, ...]) -> tuple[LayerTrace, ...]:
    """Return the wanted layers with their rollout, one head each, in place of their weights.

    After Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers": with A the mean over the heads of a
    layer, Â = 0.5·A + 0.5·I with its rows renormalised to sum to 1, and the rollout of layer l is Â_l · … · Â_0. The
    halves stand for the residual connection; nothing else of the model goes in, neither its values nor its
    feed-forward layers. Two numbers for each cell are held at a time.

    Args:
        layers: every layer from 0 to the last one wanted, in order, of one kind of attention.
        wanted: indices of layers.

    Raises:
        UsageError: queries and keys are not the tokens of one sequence, or there are several kinds of attention.
        NotExposedError: a layer below has no attention, or was not recorded.
    """
    _check(layers, max(wanted))
    found: dict[int, LayerTrace] = {}
    rollout, reached = (np.eye(layers[0].num_queries, dtype=dtype) for dtype in (np.float32, bool))
    every = np.arange(len(rollout))
    for index, layer in enumerate(layers[: max(wanted) + 1]):
        with np.errstate(invalid="ignore"):
            rollout = np.concatenate([_mixed(layer, rows) @ rollout for rows in row_blocks(every, len(every))])
        # Something can have come through any head, or from the token itself.
        allowed = layer.mask.rows([*range(layer.num_heads)], every).any(axis=0) | np.eye(len(every), dtype=bool)
        reached = allowed.astype(np.float32) @ reached > 0
        if index in wanted:
            rows = partial(_rows_of, rollout)
            shape, mask = (1, *rollout.shape), smallest(reached[None], 1)
            found[index] = derived_layer(layers[index::-1], rows, mask, (0,), head="rollout", shape=shape)
    return tuple(found[index] for index in wanted)


def rule_of(wanted: tuple[int, ...], kind: str) -> str:
    """Return what the numbers are, in a sentence."""
    alone = "; what comes from the encoder is left out" if kind == "decoder" else ""
    through = "layer 0" if wanted == (0,) else f"layers 0-{wanted[0]}"
    through = through if len(wanted) == 1 else "each layer and those below it"
    return f"rollout: {through}, the mean over all heads, half of it the token itself (Abnar & Zuidema 2020){alone}"


def _check(layers: tuple[LayerTrace, ...], last: int) -> None:
    kinds = list(dict.fromkeys(layer.kind for layer in layers))
    if len(kinds) > 1:
        raise UsageError(f"--rollout takes one kind of attention, of {', '.join(kinds)}; give --kind {kinds[0]}")
    if kinds[0] == "cross" or layers[0].num_queries != layers[0].num_keys:
        raise UsageError("--rollout multiplies layers, so queries and keys must be the same tokens")
    there = {layer.layer for layer in layers}
    lacking = [str(index) for index in range(last + 1) if index not in there]
    if lacking:
        raise NotExposedError(
            f"--rollout needs the attention of every layer from 0 to {last}; layer {', '.join(lacking)} is not there"
        )


def _rows_of(rollout: Float[np.ndarray, "Q K"], _: Sequence[int], queries: Rows) -> Float[np.ndarray, "1 Q K"]:
    return rollout[None, queries]


def _mixed(layer: LayerTrace, queries: Rows) -> Float[np.ndarray, "Q K"]:
    """Return rows of Â = 0.5·A + 0.5·I, renormalised: rows of a model with sinks sum to less than 1."""
    total = reduce(np.add, (Stages(layer, (head,), queries).weights[0] for head in range(layer.num_heads)))
    mixed = total / total.dtype.type(2 * layer.num_heads)
    mixed[np.arange(len(queries)), queries] += total.dtype.type(0.5)
    return mixed / mixed.sum(axis=-1, keepdims=True)
