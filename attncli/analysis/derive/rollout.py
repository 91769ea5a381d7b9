"""Attention rollout: what a token of a layer has taken from the tokens of the sentence, through all layers below."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attncli.analysis.derive.layer import collected, derived_from, is_same_rule, worst
from attncli.attention import row_blocks
from attncli.errors import NotExposedError, UsageError
from attncli.masks.expressions import Atom, Mask, RuleMask
from attncli.trace.layer import Derived, HeadTrace, LayerTrace

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

_CLOSED = (Atom("full"), Atom("causal"))  # masks that let through two layers what they let through one


def rolled_out(layers: tuple[LayerTrace, ...], wanted: tuple[int, ...]) -> tuple[LayerTrace, ...]:
    """Return the wanted layers with their rollout, one head each, in place of their weights.

    After Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers": with A the mean over the heads of a
    layer, Â = 0.5·A + 0.5·I with its rows renormalised to sum to 1, and the rollout of layer l is Â_l · … · Â_0. The
    halves stand for the residual connection; nothing else of the model goes in, neither its values nor its
    feed-forward layers. Two matrices `[Q, K]` are held at a time.

    Args:
        layers: every layer from 0 to the last one wanted, in order, of one kind of attention.
        wanted: indices of layers.

    Raises:
        UsageError: queries and keys are not the tokens of one sequence, or there are several kinds of attention.
        NotExposedError: a layer below has no attention, or was not recorded.
    """
    _check(layers, max(wanted))
    found: dict[int, LayerTrace] = {}
    rollout: Float[np.ndarray, "Q K"] | None = None
    mask: Mask | None = None
    for layer in layers[: max(wanted) + 1]:
        blocks = (_mixed(layer, queries) for queries in row_blocks(np.arange(layer.num_queries), layer.num_keys))
        with np.errstate(invalid="ignore"):
            rollout = np.concatenate([mixed if rollout is None else mixed @ rollout for mixed in blocks])
        mask = _reached(layer, mask)
        if layer.layer in wanted:
            proof = worst([below.proof for below in layers[: layer.layer + 1]])
            one_head = {"mask": mask, "heads": (0,), "proof": proof}
            found[layer.layer] = derived_from(layer, rollout[None], Derived(head="rollout"), **one_head)
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


def _mixed(layer: LayerTrace, queries: Int[np.ndarray, " Q"]) -> Float[np.ndarray, "Q K"]:
    """Return rows of Â = 0.5·A + 0.5·I, renormalised: rows of a model with sinks sum to less than 1."""
    total = HeadTrace(layer, 0, queries).weights
    for head in range(1, layer.num_heads):
        total = total + HeadTrace(layer, head, queries).weights
    mixed = total / total.dtype.type(2 * layer.num_heads)
    mixed[np.arange(len(queries)), queries] += total.dtype.type(0.5)
    return mixed / mixed.sum(axis=-1, keepdims=True)


def _reached(layer: LayerTrace, below: Mask | None) -> Mask:
    """Return from which tokens something can have come: through any head, or from the token itself."""
    is_closed = isinstance(layer.mask, RuleMask) and layer.mask.expression in _CLOSED
    if is_closed and (below is None or is_same_rule(below, layer.mask)):
        return layer.mask
    blocks = row_blocks(np.arange(layer.num_queries), layer.num_keys * layer.num_heads)
    lower = None if below is None else np.concatenate([below.rows([0], rows)[0] for rows in blocks]).astype(np.float32)

    def allowed(queries: Int[np.ndarray, " Q"]) -> Bool[np.ndarray, "1 Q K"]:
        own = np.asarray(layer.mask.rows(list(range(layer.num_heads)), queries).any(axis=0))
        own[np.arange(len(queries)), queries] = True
        return (own if lower is None else own.astype(np.float32) @ lower > 0)[None]

    return collected(map(allowed, blocks), 1)
