"""The mean over heads, over layers, or over both."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from attncli.analysis.derive.layer import derived_layer
from attncli.errors import UsageError
from attncli.masks.expressions import RuleMask, smallest
from attncli.text import as_ranges
from attncli.trace.layer import LayerTrace, Stages

if TYPE_CHECKING:
    from jaxtyping import Float

    from attncli.analysis.derive.layer import Rows
    from attncli.trace.trace import Mean


def averaged(layers: tuple[LayerTrace, ...], over: Mean) -> tuple[LayerTrace, ...]:
    """Return the layers with the mean of their heads, or one layer of each kind that stands for all, or both.

    Only the heads that were asked for count. A layer counts once, whatever the number of its heads.

    Raises:
        UsageError: there is one layer where several are averaged, or they do not have the same heads.
    """
    if over != "layers":
        layers = tuple(map(_over_heads, layers))
    if over == "heads":
        return layers
    kinds = {kind: [layer for layer in layers if layer.kind == kind] for kind in dict.fromkeys(x.kind for x in layers)}
    for kind, of_kind in kinds.items():
        if len(of_kind) < 2:
            raise UsageError(
                f"--mean {over} needs several layers with {kind} attention; here is layer {of_kind[0].layer}"
            )
        if len({layer.heads for layer in of_kind}) > 1:
            raise UsageError("--mean layers needs layers with the same heads; give --mean all")
    return tuple(map(_over_layers, kinds.values()))


def rule_of(layers: tuple[LayerTrace, ...], over: Mean) -> str:
    """Return what the numbers are, in a sentence."""
    heads = f"head{'s' * (len(layers[0].heads) > 1)} {as_ranges(layers[0].heads)}" if over != "layers" else ""
    indices = sorted({layer.layer for layer in layers})
    found = f"layers {as_ranges(indices)}" if over != "heads" else ""
    return f"reduced: mean over {' of '.join(filter(None, (heads, found)))}"


def _over_heads(layer: LayerTrace) -> LayerTrace:
    _, queries, keys = layer.cells

    def rows(_: Sequence[int], queries: Rows) -> Float[np.ndarray, "1 Q K"]:
        return reduce(np.add, (Stages(layer, (head,), queries).weights for head in layer.heads)) / len(layer.heads)

    mask, heads = layer.mask, [*layer.heads]
    if len(mask.rows(heads, np.arange(1))) > 1:
        mask = smallest(np.asarray(mask.rows(heads, np.arange(queries)).any(axis=0, keepdims=True)), 1)
    return derived_layer([layer], rows, mask, (0,), head="mean", shape=(1, queries, keys))


def _over_layers(layers: Sequence[LayerTrace]) -> LayerTrace:
    def rows(heads: Sequence[int], queries: Rows) -> Float[np.ndarray, "H Q K"]:
        return reduce(np.add, (Stages(layer, tuple(heads), queries).weights for layer in layers)) / len(layers)

    first, (heads, queries, _) = layers[0], layers[0].cells
    mask, rules = first.mask, [layer.mask for layer in layers if isinstance(layer.mask, RuleMask)]
    if len(rules) < len(layers) or rules.count(rules[0]) < len(rules):  # cells are never compared
        every = (layer.mask.rows([*range(heads)], np.arange(queries)) for layer in layers)
        mask = smallest(reduce(np.logical_or, every), heads)
    return derived_layer(layers, rows, mask, first.heads, layer="mean")
