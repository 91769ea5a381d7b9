"""What a careful reader would want to be told about a trace before trusting its picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from attncli.layer import LayerTrace
from attncli.selection import layers_named
from attncli.trace import Trace
from attncli.view import View

_NAMED = 5  # of the queries or heads that a sentence is about


def warnings_of(trace: Trace, view: View) -> Iterator[str]:
    """Yield a sentence for everything in a trace that its numbers alone do not say."""
    yield from trace.notes
    for layer in trace.layers:
        if left_out := (view.show or frozenset()) & layer.missing:
            verb = "are" if len(left_out) > 1 else "is"
            yield f"layer {layer.layer} gives its weights alone: {', '.join(sorted(left_out))} {verb} left out"
        yield from _unproven(trace, layer)
    yield from _blind(trace, view)


def _blind(trace: Trace, view: View) -> Iterator[str]:
    """Yield a sentence about the rows that may attend to no key, one for all layers of which it is true."""
    layers: dict[tuple[str, str], list[int]] = {}
    for layer in trace.layers:
        if said := _blind_rows(trace, layer, view):
            layers.setdefault((said, layer.kind), []).append(layer.layer)
    has_kinds = len({layer.kind for layer in trace.layers}) > 1
    for (said, kind), found in layers.items():
        yield f"{layers_named(found, kind if has_kinds else None)}: {said}"


def _blind_rows(trace: Trace, layer: LayerTrace, view: View) -> str:
    """Return which rows shown may attend to no key, in which heads, and what becomes of them; nothing of none."""
    cells = view.cells(trace, layer)
    blind = layer.blind(cells.rows)
    heads, rows = np.flatnonzero(blind.any(axis=1)), np.flatnonzero(blind.any(axis=0))
    if not len(rows):
        return ""
    queries = [cells.rows[row] for row in rows]
    named = _named([f"{query} '{cells.row_tokens[query].label}'" for query in queries])
    if np.array_equal(blind.any(axis=0), blind.all(axis=0)):
        where = ""
    elif len(heads) < len(blind):
        where = f" in head{'s' * (len(heads) > 1)} {_named([str(layer.heads[head]) for head in heads])}"
    else:
        where = " in one head or another"
    row = rows[np.flatnonzero(blind[heads[0], rows])[0]]
    becomes = _softmax_of(layer, layer.heads[heads[0]], cells.rows[row])
    return f"the mask leaves no key to query {named}{where}; the softmax of such a row is {becomes}"


def _softmax_of(layer: LayerTrace, head: int, query: int) -> str:
    """Return what becomes of a row without a key, which depends on what its cells are filled with, and on sinks."""
    weights = layer.head(head, [query]).weights
    if np.isnan(weights).any():
        return "NaN"
    return "spread over masked keys" if weights.any() else "0 for every key"


def _named(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _unproven(trace: Trace, layer: LayerTrace) -> Iterator[str]:
    proof = layer.proof
    if proof is not None and not layer.is_proven(trace.source.dtype):
        yield (
            f"layer {layer.layer}: what is shown differs from {proof.against} by {proof.max_abs_error:.1e}, more "
            f"than the rounding of {trace.source.dtype}; do not trust it"
        )
