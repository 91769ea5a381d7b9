"""Warnings about a trace, for a reader of its weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from attncli.attention import noise_floor
from attncli.text import layers_named
from attncli.trace.layer import LayerTrace
from attncli.trace.tokens import Tokens
from attncli.trace.trace import Trace
from attncli.trace.view import View

if TYPE_CHECKING:
    from attncli.analysis.cell import AttentionRow

_NAMED = 5  # of the queries that a sentence is about


def warnings_of(trace: Trace, view: View) -> Iterator[str]:
    """Yield the warnings about one trace, a sentence each; those about its whole source are the source's notes."""
    yield from trace.notes
    for tokens, names in ((trace.query_tokens, view.queries), (trace.key_tokens, view.keys)):
        yield from filter(None, map(tokens.pieces_note, names))
    for layer in trace.layers:
        if left_out := (view.show or frozenset()) & layer.missing:
            verb = "are" if len(left_out) > 1 else "is"
            yield f"layer {layer.layer} gives its weights alone: {', '.join(sorted(left_out))} {verb} left out"
    for layer in trace.recorded.layers:
        yield from _unproven(trace, layer)
    derivation = None if trace.origin is None else trace.origin.derivation
    # A word or a row of a rollout is made of several rows, whichever of them the view shows.
    view = View() if derivation is not None and (derivation.words or derivation.rollout) else view
    shown = [(layer, view.cells(trace.recorded, layer)) for layer in trace.recorded.layers]
    yield from _merged_warnings((layer, _blind_rows(layer, cells.row_tokens, cells.rows)) for layer, cells in shown)


def warnings_of_test(trace: Trace) -> Iterator[str]:
    """Yield a warning where a query may attend to later keys, for which the induction test is not made."""
    if any(layer.mask.rows(list(layer.heads), np.array([0]))[..., 1:].any() for layer in trace.layers):
        yield "queries of this model see later keys, and --induction tests causal models"


def warnings_of_rows(trace: Trace, rows: Sequence[AttentionRow]) -> Iterator[str]:
    """Yield the notes of a trace and its source, then the warnings about some of its rows, a sentence each."""
    yield from (*trace.source.notes, *trace.notes)
    layers = list({id(row.layer): row for row in rows}.values())
    for row in layers:
        yield from _unproven(trace, row.layer)
    yield from _merged_warnings((row.layer, message) for row in layers for message in _unknown(row))
    blind = ((row.layer, trace.sides(row.layer)[0], [row.query.index]) for row in layers)
    yield from _merged_warnings((of_row[0], _blind_rows(*of_row)) for of_row in blind)
    yield from _merged_warnings((row.layer, _unexplained(trace, row)) for row in rows)


def _merged_warnings(sentences: Iterable[tuple[LayerTrace, str]]) -> Iterator[str]:
    """Yield each sentence once, with all the layers that it is true of; an empty one is dropped."""
    layers: dict[tuple[str, str], list[int]] = {}
    for layer, sentence in sentences:
        layers.setdefault((sentence, layer.kind), []).append(layer.layer)
    kinds = {kind for _, kind in layers}
    for (sentence, kind), indices in layers.items():
        if sentence:
            yield f"{layers_named(indices, kind if len(kinds) > 1 else None)}: {sentence}"


def _unknown(row: AttentionRow) -> Iterator[str]:
    """Yield which stages of a row its layer cannot give."""
    layer = row.layer
    if row.products is None:
        yield "q and k are not known, so nothing explains the scores"
    elif layer.scale is None:
        yield "the scores are more than q·k times a scale; they are shown as the softmax received them"
    if row.value_norms is None:
        yield "its values are not known, so contributions are left out"


def _unexplained(trace: Trace, row: AttentionRow) -> str:
    """Return how far the weights are from the softmax of the scores; empty if it is no more than rounding."""
    parts = row.softmax
    if parts is None or row.layer.recorded_weights is None:
        return ""
    with np.errstate(invalid="ignore"):
        error = float(np.nan_to_num(np.abs(parts.exponentials / parts.total - row.weights)).max())
    if error <= noise_floor(trace.source.dtype):
        return ""
    return f"the weights of head {row.head.head} differ from the softmax of its scores by {error:.1e}"


def _blind_rows(layer: LayerTrace, tokens: Tokens, queries: Sequence[int]) -> str:
    """Name the rows that may attend to no key, and what their weights become; empty if there are none."""
    blind = layer.fully_masked(queries)
    if not blind.any():
        return ""
    rows = np.flatnonzero(blind.any(axis=0)).tolist()
    named = ", ".join(f"{queries[row]} '{tokens[queries[row]].label}'" for row in rows[:_NAMED])
    named += f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    if not blind[:, rows].all():
        named += " in some heads"
    # What becomes of it depends on what its cells are filled with, and on sinks.
    head, row = np.argwhere(blind)[0].tolist()
    weights = layer.head(layer.heads[head], [queries[row]]).weights
    becomes = "spread over masked keys" if weights.any() else "0 for every key"
    becomes = "NaN" if np.isnan(weights).any() else becomes
    return f"the mask leaves no key to query {named}; the softmax of such a row is {becomes}"


def _unproven(trace: Trace, layer: LayerTrace) -> Iterator[str]:
    proof = layer.proof
    if proof is not None and not layer.is_proven(trace.source.dtype):
        error = f"what is shown differs from {proof.against} by {proof.max_abs_error:.1e}"
        yield f"layer {layer.layer}: {error}, more than the rounding of {trace.source.dtype}; do not trust it"
