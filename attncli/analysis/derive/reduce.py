"""The mean or the maximum over heads, over layers, or over both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attncli.analysis.derive.layer import MadeRows, any_mask, derived_from, worst
from attncli.errors import UsageError
from attncli.text import as_ranges
from attncli.trace.layer import Derived, HeadTrace, LayerTrace

if TYPE_CHECKING:
    from jaxtyping import Float, Int


def reduced(layers: tuple[LayerTrace, ...], how: str, over: frozenset[str]) -> tuple[LayerTrace, ...]:
    """Return the layers with their heads merged into one, or one layer of each kind that stands for all, or both.

    Only the heads that were asked for are merged; `how` is `mean` or `max`, `over` some of `heads` and `layers`.

    Raises:
        UsageError: there is one layer where several are to be merged, or they do not have the same heads.
    """
    if "layers" not in over:
        return tuple(_merged([layer], how, over) for layer in layers)
    kinds = {kind: [layer for layer in layers if layer.kind == kind] for kind in dict.fromkeys(x.kind for x in layers)}
    for kind, found in kinds.items():
        if len(found) < 2:
            raise UsageError(f"--over layers needs several layers of {kind} attention; here is layer {found[0].layer}")
        if len({(layer.query_tokens, layer.key_tokens) for layer in found}) > 1:
            raise UsageError("--over layers: the positions of some stand for other tokens; choose layers with --layer")
        if "heads" not in over and len({layer.heads for layer in found}) > 1:
            raise UsageError("--over layers: they do not have the same heads; merge these too, --over heads,layers")
    return tuple(_merged(found, how, over) for found in kinds.values())


def rule_of(layers: tuple[LayerTrace, ...], how: str, over: frozenset[str]) -> str:
    """Return what the numbers are, in a sentence."""
    heads = f"head{'s' * (len(layers[0].heads) > 1)} {as_ranges(layers[0].heads)}" if "heads" in over else ""
    indices = sorted({layer.layer for layer in layers})
    found = f"layers {as_ranges(indices)}" if "layers" in over else ""
    return f"reduced: {how} over {' of '.join(filter(None, (heads, found)))}"


def _merged(layers: list[LayerTrace], how: str, over: frozenset[str]) -> LayerTrace:
    first = layers[0]
    if "heads" in over:
        planes = {0: [(layer, head) for layer in layers for head in layer.heads]}
    else:
        planes = {head: [(layer, head) for layer in layers] for head in range(first.num_heads)}

    def rows(head: int, queries: Int[np.ndarray, " Q"]) -> Float[np.ndarray, "Q K"]:
        parts = (HeadTrace(layer, index, queries).weights for layer, index in planes[head])
        total = next(parts)
        for part in parts:
            total = np.maximum(total, part) if how == "max" else total + part
        return total / total.dtype.type(len(planes[head])) if how == "mean" else total

    heads, queries, keys = first.cells
    before = first.derived or Derived()
    return derived_from(
        first,
        MadeRows((1 if "heads" in over else heads, queries, keys), rows),
        Derived(
            before.measure,
            how == "mean" and before.is_distribution,
            how if "layers" in over else before.layer,
            how if "heads" in over else before.head,
        ),
        mask=any_mask(layers, "heads" in over),
        heads=(0,) if "heads" in over else first.heads,
        proof=worst([layer.proof for layer in layers]),
    )
