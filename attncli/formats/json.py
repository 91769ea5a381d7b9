"""The JSON document of a trace, schema `attncli.trace/1`: one document, an array of them, or one a line."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from attncli.formats.numbers import written
from attncli.metrics import head_metrics
from attncli.trace import SCHEMA, HeadTrace, LayerTrace, Trace
from attncli.view import View

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

DEFAULT = ("scores", "mask", "weights", "metrics")


def write_json(traces: Iterable[tuple[int, Trace]], view: View) -> Iterator[str]:
    """Write one document for one sentence, an array of documents for several."""
    documents = (_dumped(document(trace, view)) for _, trace in traces)
    first = list(itertools.islice(documents, 2))
    if len(first) < 2:
        yield from (one + "\n" for one in first)
        return
    yield "[" + ",\n".join(first)
    for another in documents:
        yield ",\n" + another
    yield "]\n"


def write_lines(traces: Iterable[tuple[int, Trace]], view: View) -> Iterator[str]:
    """Write one document a line."""
    for _, trace in traces:
        yield _dumped(document(trace, view)) + "\n"


def document(trace: Trace, view: View) -> dict[str, Any]:
    """Return the document of one trace; rows are query tokens, columns key tokens, in the order listed."""
    rows, columns = view.rows(trace), view.columns(trace)
    return {
        "schema": SCHEMA,
        "source": trace.source.as_dict(),
        "text": trace.text,
        "pair": trace.pair,
        "target": trace.target,
        "query_tokens": [asdict(trace.query_tokens[row]) for row in rows],
        "key_tokens": [asdict(trace.key_tokens[column]) for column in columns],
        "layers": [_layer(trace, layer, view) for layer in trace.layers],
    }


def _layer(trace: Trace, layer: LayerTrace, view: View) -> dict[str, Any]:
    cells = view.cells(trace, layer)
    rows, columns = cells.rows, cells.columns
    parts = view.parts(DEFAULT)
    entry: dict[str, Any] = {
        "layer": layer.layer,
        "kind": layer.kind,
        "scale": layer.scale,
        "softcap": layer.softcap,
        "capture": layer.capture,
        "shapes": layer.shapes,
        "proof": layer.proof and asdict(layer.proof),
    }
    if "embeddings" in parts and layer.inputs is not None:
        entry["embeddings"] = _numbers(layer.inputs[rows], view)
    entry["heads"] = [_head(trace, layer, head, view, rows, columns) for head in layer.heads]
    projected = layer.projected(rows) if "output" in parts else None
    if projected is not None:
        entry["projected"] = _numbers(projected, view)
    return entry


def _head(
    trace: Trace, layer: LayerTrace, index: int, view: View, rows: list[int], columns: list[int]
) -> dict[str, Any]:
    parts = view.parts(DEFAULT)
    head = layer.head(index, rows)
    entry: dict[str, Any] = {"head": index}
    if "q" in parts:
        entry["q"] = _numbers(head.q, view)
    if "k" in parts:
        entry["k"] = _numbers(head.k[columns], view)
    if "v" in parts:
        entry["v"] = _numbers(head.v[columns], view)
    if "scores" in parts:
        entry["scores"] = _numbers(head.scores[:, columns], view)
    if "mask" in parts:
        entry["mask"] = head.mask[:, columns].tolist()
    if "weights" in parts:
        entry["weights"] = _numbers(head.weights[:, columns], view)
    if "output" in parts:
        entry["output"] = _numbers(head.output, view)
    if "metrics" in parts:
        entry["metrics"] = _metrics(trace, layer, head, view)
    return entry


def _metrics(trace: Trace, layer: LayerTrace, head: HeadTrace, view: View) -> dict[str, Any]:
    # Metrics describe the whole head, whichever of its rows are shown.
    whole = head if len(head.queries) == layer.num_queries else layer.head(head.head)
    metrics = head_metrics(trace, layer, whole)
    return {name: _number(value, view) for name, value in metrics.items()}


def _number(value: float | None, view: View) -> float | str | None:
    if value is None:
        return None
    if not math.isfinite(value):
        return str(value)
    return value if view.precision is None else round(value, view.precision)


def _numbers(values: Float[np.ndarray, ...], view: View) -> Any:
    """Return nested lists of numbers; what JSON has no number for is a string."""
    if values.ndim > 1:
        return [_numbers(row, view) for row in values]
    return [float(text) if text[-1].isdigit() else text for text in written(values, view.precision).tolist()]


def _dumped(document: dict[str, Any]) -> str:
    # ASCII alone: no control or bidirectional character of a token reaches a terminal, and every stdout takes it.
    return json.dumps(document, allow_nan=False)
