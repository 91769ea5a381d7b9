"""The JSON document of a trace, schema `attncli.trace/1`.

A document is written piece by piece, its matrices a block of rows at a time, so none of it is ever held whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.analysis.metrics import head_metrics
from attncli.attention import row_blocks
from attncli.errors import metadata_json
from attncli.formats.answers import array, dumped, gathered, opened
from attncli.formats.numbers import matrix, number, proven, rows_as_numbers
from attncli.trace.layer import HeadTrace, LayerTrace
from attncli.trace.tokens import Tokens
from attncli.trace.top_keys import top_keys
from attncli.trace.trace import SCHEMA, Trace
from attncli.trace.view import Cells, View

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    Matrix = Float[np.ndarray, "R C"] | Bool[np.ndarray, "R C"]

DEFAULT = ("scores", "mask", "weights", "metrics")
_OF_TOP_KEYS = ("metrics",)  # where the heaviest keys stand in for the matrices


def document(sentence: int, trace: Trace, view: View) -> Iterator[str]:
    """Yield the document of a sentence's trace; rows are query tokens, columns key tokens, in the order listed."""
    return gathered(_document(sentence, trace, view))


def _document(sentence: int, trace: Trace, view: View) -> Iterator[str]:
    yield opened({
        "schema": SCHEMA,
        "sentence": sentence,
        **metadata_json(trace.metadata),
        **described(trace),
        **({} if trace.origin is None else {"derived": trace.origin.as_dict()}),
    })  # fmt: skip
    rows, columns = view.rows(trace), view.columns(trace)
    queries = keys = dumped(_queries(trace, rows))
    if trace.query_tokens is not trace.key_tokens or rows != columns or trace.generated:
        keys = dumped(_listed(trace.key_tokens, columns))
    yield f', "query_tokens": {queries}, "key_tokens": {keys}, "layers": '
    yield from array(_layer(trace, layer, view) for layer in trace.layers)
    yield "}"


def described(trace: Trace) -> dict[str, Any]:
    """Return where a trace comes from and what it is the attention of."""
    return {"source": trace.source.as_dict(), "text": trace.text, "pair": trace.pair, "target": trace.target}


def _queries(trace: Trace, rows: list[int]) -> list[dict[str, Any]]:
    """Return the tokens of queries, each with the one that the model wrote after it."""
    written = {row: {"id": token.id, "text": token.text} for row, token in trace.predicted.items()}
    queries = _listed(trace.query_tokens, rows)
    return [
        {**query, "predicted": written[row]} if row in written else query
        for row, query in zip(rows, queries, strict=True)
    ]


def _listed(tokens: Tokens, chosen: Iterable[int]) -> list[dict[str, Any]]:
    return [tokens[index].as_dict() for index in chosen]


def _layer(trace: Trace, layer: LayerTrace, view: View) -> Iterator[str]:
    cells = view.cells(trace, layer)
    parts = _parts(view)
    yield opened({
        "layer": layer.label,
        "kind": layer.kind,
        "scale": layer.scale,
        "softcap": layer.softcap,
        "capture": layer.capture,
        "shapes": layer.shapes,
        "proof": proven(layer.proof),
    })  # fmt: skip
    if "embeddings" in parts and layer.inputs is not None:
        yield from _matrix("embeddings", _blocks(layer.inputs[cells.rows]), view)
    yield ', "heads": '
    yield from array(_head(trace, layer, head, view, cells) for head in layer.heads)
    projected = layer.projected(cells.rows) if "output" in parts else None
    if projected is not None:
        yield from _matrix("projected", _blocks(projected), view)
    yield "}"


def _head(trace: Trace, layer: LayerTrace, index: int, view: View, cells: Cells) -> Iterator[str]:
    parts = _parts(view) - layer.missing
    head = layer.head(index, cells.rows)
    columns = cells.of_columns
    yield opened({"head": layer.head_label(index)})
    if view.top_keys is not None:
        yield ', "top_keys": '
        yield from array(_ranked(head, cells, view.top_keys, view))
    if "q" in parts:
        yield from _matrix("q", _blocks(head.q), view)
    if "k" in parts:
        yield from _matrix("k", _blocks(head.k[columns]), view)
    if "v" in parts:
        yield from _matrix("v", _blocks(head.v[columns]), view)
    if "scores" in parts:
        yield from _matrix("scores", (block.scores[:, columns] for block in head.blocks()), view)
    if "mask" in parts:
        yield from _matrix("mask", (block.mask[:, columns] for block in head.blocks()), view)
    if "weights" in parts:
        yield from _matrix(layer.measure, (block.weights[:, columns] for block in head.blocks()), view)
    if "output" in parts:
        yield from _matrix("output", _blocks(head.output), view)
    if "metrics" in parts:
        yield f', "metrics": {dumped(_metrics(trace, layer, head, view))}'
    yield "}"


def _parts(view: View) -> frozenset[str]:
    return view.parts(DEFAULT if view.top_keys is None else _OF_TOP_KEYS)


def _ranked(head: HeadTrace, cells: Cells, most: int, view: View) -> Iterator[Iterator[str]]:
    """Yield the heaviest keys of each query, by their index in the sequence, heaviest first."""
    for places, weights in top_keys(head, cells.of_columns, most):
        keys = [cells.columns[place] for place in places.tolist()]
        numbers = rows_as_numbers(weights[None], view.precision)[1:-1]
        yield iter([f'{{"keys": {keys}, "{head.layer.measure}": {numbers}}}'])


def _metrics(trace: Trace, layer: LayerTrace, head: HeadTrace, view: View) -> dict[str, Any]:
    # Metrics describe the whole head, whichever of its rows are shown.
    whole = head if len(head.queries) == layer.num_queries else layer.head(head.head)
    metrics = head_metrics(trace, layer, whole)
    return {name: number(value, view.precision) for name, value in metrics.items()}


def _matrix(name: str, blocks: Iterable[Matrix], view: View) -> Iterator[str]:
    """Yield an array under its name, as a member of an object that has some already."""
    yield f', "{name}": '
    yield from matrix(blocks, view.precision)


def _blocks(values: Float[np.ndarray, "R C"]) -> Iterator[Float[np.ndarray, "R C"]]:
    return (values[rows] for rows in row_blocks(np.arange(len(values)), values.shape[1]))
