"""What a careful reader would want to be told about a trace before trusting its picture."""

from __future__ import annotations

import math
from collections.abc import Iterator

from attncli.layer import LayerTrace
from attncli.noise import noise_floor
from attncli.trace import Trace
from attncli.view import Cells, View


def warnings_of(trace: Trace, view: View) -> Iterator[str]:
    """Yield a sentence for everything in a trace that its numbers alone do not say."""
    yield from trace.notes
    for layer in trace.layers:
        if left_out := (view.show or frozenset()) & layer.missing:
            verb = "are" if len(left_out) > 1 else "is"
            yield f"layer {layer.layer} gives its weights alone: {', '.join(sorted(left_out))} {verb} left out"
        yield from _blind(layer, view.cells(trace, layer))
        yield from _unproven(trace, layer)


def _blind(layer: LayerTrace, cells: Cells) -> Iterator[str]:
    blind = layer.blind_queries(cells.rows)
    if blind:
        names = ", ".join(f"{row} '{cells.row_tokens[row].label}'" for row in blind[:5])
        names += f" and {len(blind) - 5} more" if len(blind) > 5 else ""
        becomes = "spread over masked keys" if math.isfinite(layer.fill) else "NaN"
        yield (f"layer {layer.layer}: the mask leaves no key to query {names}; the softmax of such a row is {becomes}")


def _unproven(trace: Trace, layer: LayerTrace) -> Iterator[str]:
    proof = layer.proof
    if proof is not None and not proof.max_abs_error <= noise_floor(trace.source.dtype):
        yield (
            f"layer {layer.layer}: what is shown differs from {proof.against} by {proof.max_abs_error:.1e}, more "
            f"than the rounding of {trace.source.dtype}; do not trust it"
        )
