"""The JSON document of a trace, schema `attncli.trace/1`.

A document is written piece by piece, its matrices a block of rows at a time, so none of it is ever held whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any

from attncli.analysis.metrics import head_metrics
from attncli.errors import metadata_json
from attncli.formats.json_stream import RowBlocks, gathered, pieces, plain
from attncli.formats.numbers import proven
from attncli.trace.layer import LayerTrace
from attncli.trace.tokens import NextToken, Tokens
from attncli.trace.top_keys import top_keys
from attncli.trace.trace import SCHEMA, Trace
from attncli.trace.view import Cells, View

DEFAULT = ("scores", "mask", "weights", "metrics")
_OF_TOP_KEYS = ("metrics",)  # where the heaviest keys stand in for the matrices


def document(sentence: int, trace: Trace, view: View) -> Iterator[str]:
    """Yield the document of a sentence's trace; rows are query tokens, columns key tokens, in the order listed."""
    rows, columns = view.rows(trace), view.columns(trace)
    queries = keys = _listed(trace.query_tokens, rows)
    if trace.query_tokens is not trace.key_tokens or rows != columns or trace.generated:
        keys = _listed(trace.key_tokens, columns)
    for row, query in zip(rows, queries, strict=True):
        if row in trace.predicted:  # the token that the model wrote after it
            query["predicted"] = {"id": trace.predicted[row].id, "text": trace.predicted[row].text}
    whole = {
        "schema": SCHEMA,
        "sentence": sentence,
        **metadata_json(trace.metadata),
        **described(trace),
        **({} if trace.origin is None else {"derived": trace.origin.as_dict()}),
        **trace.described_pictures,
        **({} if "next" not in (view.show or ()) else {"next": [_next(each) for each in trace.next_tokens]}),
        "query_tokens": queries,
        "key_tokens": keys,
        "layers": (_layer(trace, layer, view) for layer in trace.layers),
    }
    return gathered(pieces(whole, view.precision))


def _next(one: NextToken) -> dict[str, Any]:
    return {"id": one.token.id, "text": one.token.text, "logit": one.logit, "logprob": one.logprob}


def described(trace: Trace) -> dict[str, Any]:
    """Return the entries of a trace's source and texts."""
    return {"source": trace.source.as_dict(), "text": trace.text, "pair": trace.pair, "target": trace.target}


def _listed(tokens: Tokens, chosen: Iterable[int]) -> list[dict[str, Any]]:
    return [tokens[index].as_dict() for index in chosen]


def _layer(trace: Trace, layer: LayerTrace, view: View) -> dict[str, Any]:
    cells = view.cells(trace, layer)
    parts = view.parts(DEFAULT if view.top_keys is None else _OF_TOP_KEYS)
    document: dict[str, Any] = {
        "layer": layer.label,
        "kind": layer.kind,
        "scale": layer.scale,
        "softcap": layer.softcap,
        "capture": layer.capture,
        "shapes": layer.shapes,
        "proof": proven(layer.proof),
    }
    if "embeddings" in parts and layer.inputs is not None:
        document["embeddings"] = layer.inputs[cells.rows]
    document["heads"] = (_head(trace, layer, head, view, cells, parts - layer.missing) for head in layer.heads)
    projected = layer.projected(cells.rows) if "output" in parts else None
    return document if projected is None else document | {"projected": projected}


def _head(
    trace: Trace, layer: LayerTrace, index: int, view: View, cells: Cells, parts: frozenset[str]
) -> dict[str, Any]:
    head, columns = layer.head(index, cells.rows), cells.of_columns
    document: dict[str, Any] = {"head": layer.head_label(index)}
    if view.top_keys is not None:  # by their index in the sequence, heaviest first
        document["top_keys"] = (
            {"keys": [cells.columns[place] for place in places.tolist()], layer.measure: weights}
            for places, weights in top_keys(head, columns, view.top_keys)
        )
    if "q" in parts:
        document["q"] = head.q
    document |= {part: getattr(head, part)[columns] for part in ("k", "v") if part in parts}
    for part in ("scores", "mask", "weights"):
        if part in parts:
            blocks = map(attrgetter(part), head.blocks())
            document[layer.measure if part == "weights" else part] = RowBlocks(block[:, columns] for block in blocks)
    if "output" in parts:
        document["output"] = head.output
    if "metrics" in parts:  # which describe the whole head, whichever of its rows are shown
        whole = head if len(head.queries) == layer.num_queries else layer.head(index)
        document["metrics"] = plain(head_metrics(trace, layer, whole), view.precision)
    return document
