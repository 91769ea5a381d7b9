"""The mean over heads, over layers, or over both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attncli.analysis.derive.layer import DerivedRows, any_mask, derived_from, worst
from attncli.errors import UsageError
from attncli.text import as_ranges
from attncli.trace.layer import Derived, HeadTrace, LayerTrace

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from attncli.trace.trace import Mean


def averaged(layers: tuple[LayerTrace, ...], over: Mean) -> tuple[LayerTrace, ...]:
    """Return the layers with the mean of their heads, or one layer of each kind that stands for all, or both.

    Only the heads that were asked for count.

    Raises:
        UsageError: there is one layer where several are averaged, or they do not have the same heads.
    """
    if over == "heads":
        return tuple(_averaged([layer], over) for layer in layers)
    kinds = {kind: [layer for layer in layers if layer.kind == kind] for kind in dict.fromkeys(x.kind for x in layers)}
    for kind, found in kinds.items():
        if len(found) < 2:
            raise UsageError(
                f"--mean {over} needs several layers with {kind} attention; here is layer {found[0].layer}"
            )
        if over == "layers" and len({layer.heads for layer in found}) > 1:
            raise UsageError("--mean layers needs layers with the same heads; give --mean all")
    return tuple(_averaged(found, over) for found in kinds.values())


def rule_of(layers: tuple[LayerTrace, ...], over: Mean) -> str:
    """Return what the numbers are, in a sentence."""
    heads = f"head{'s' * (len(layers[0].heads) > 1)} {as_ranges(layers[0].heads)}" if over != "layers" else ""
    indices = sorted({layer.layer for layer in layers})
    found = f"layers {as_ranges(indices)}" if over != "heads" else ""
    return f"reduced: mean over {' of '.join(filter(None, (heads, found)))}"


def _averaged(layers: list[LayerTrace], over: Mean) -> LayerTrace:
    first, over_heads = layers[0], over != "layers"
    if over_heads:
        planes = {0: [(layer, head) for layer in layers for head in layer.heads]}
    else:
        planes = {head: [(layer, head) for layer in layers] for head in range(first.num_heads)}

    def rows(head: int, queries: Int[np.ndarray, " Q"]) -> Float[np.ndarray, "Q K"]:
        parts = (HeadTrace(layer, index, queries).weights for layer, index in planes[head])
        total = next(parts)
        for part in parts:
            total = total + part
        return total / total.dtype.type(len(planes[head]))

    heads, queries, keys = first.cells
    before = first.derived or Derived()
    return derived_from(
        first,
        DerivedRows((1 if over_heads else heads, queries, keys), rows),
        Derived(
            before.measure,
            before.is_distribution,
            before.layer if over == "heads" else "mean",
            "mean" if over_heads else before.head,
        ),
        mask=any_mask(layers, over_heads),
        heads=(0,) if over_heads else first.heads,
        proof=worst([layer.proof for layer in layers]),
    )
