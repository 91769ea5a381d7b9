"""The JSON document of one cell, or of one row, taken apart: `attncli.why/1`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from attncli.analysis.cell import Cell, Row
from attncli.analysis.why import Explained
from attncli.formats.numbers import number, proven
from attncli.trace.trace import Trace


def write_why(trace: Trace, explained: Explained, precision: int | None) -> Iterator[str]:
    """Yield one document for one cell or row; an array of them for several heads or layers."""
    is_array = len(explained) > 1
    opening = "[" if is_array else ""
    for one in explained:
        members = _cell(one, precision) if isinstance(one, Cell) else _row(one, precision)
        about = {"schema": "attncli.why/1", "source": trace.source.as_dict()}
        texts = {"text": trace.text, "pair": trace.pair, "target": trace.target}
        # ASCII alone: no control or bidirectional character of a token reaches a terminal.
        yield opening + json.dumps(about | texts | members, allow_nan=False)
        opening = ",\n"
    yield "]\n" if is_array else "\n"


def _row(row: Row, precision: int | None) -> dict[str, Any]:
    """Return the document of a row: its keys by weight, all of them."""
    columns = {
        "score": row.scores,
        "allowed": row.allowed,
        "weight": row.weights,
        "value_norm": row.value_norms,
        "contribution_norm": row.contribution_norms,
        "output_share": row.output_shares,
    }
    keys = [
        {"key": key, "key_token": row.keys[key].as_dict()}
        | {name: None if values is None else _json(values[key], precision) for name, values in columns.items()}
        for key in row.ranked.tolist()
    ]
    return {**_place(row), "key": None, "keys": keys, **_totals(row, precision)}


def _cell(cell: Cell, precision: int | None) -> dict[str, Any]:
    """Return the document of a cell: its dimensions by their product, all of them, and every stage."""
    layer, parts = cell.row.layer, cell.row.softmax
    q, k, products = cell.q, cell.k, cell.products
    dimensions = None
    if q is not None and k is not None and products is not None:
        vectors = {"q": q, "k": k, "product": products}
        dimensions = [
            {"dim": dim, **{name: number(vector[dim], precision) for name, vector in vectors.items()}}
            for dim in cell.ranked.tolist()
        ]
    stages = {
        "dot_product": cell.dot_product,
        "scale": layer.scale,
        "scaled": cell.scaled,
        "bias": cell.bias,
        "softcap": layer.softcap,
        "score": cell.score,
        "allowed": cell.allowed,
        "masked": cell.masked,
        "highest": None if parts is None else parts.highest,
        "exponential": cell.exponential,
        "total": None if parts is None else parts.total,
        "weight": cell.weight,
        "value_norm": cell.value_norm,
        "contribution_norm": cell.contribution_norm,
        "output_share": cell.output_share,
    }
    return {
        **_place(cell.row),
        "key": cell.key.index,
        "key_token": cell.key.as_dict(),
        "dimensions": dimensions,
        **{name: _json(value, precision) for name, value in stages.items()},
        **_totals(cell.row, precision),
    }


def _place(row: Row) -> dict[str, Any]:
    return {
        "layer": row.layer.layer,
        "kind": row.layer.kind,
        "head": row.head.head,
        "capture": row.layer.capture,
        "proof": proven(row.layer.proof),
        "query": row.query.index,
        "query_token": row.query.as_dict(),
    }


def _totals(row: Row, precision: int | None) -> dict[str, Any]:
    """Return what belongs to the whole row: the sink's logit and weight, and the length of the output."""
    sinks = row.layer.sinks
    return {
        "sink": None if sinks is None else number(sinks[row.head.head], precision),
        "sink_weight": number(row.sink_weight, precision),
        "output_norm": number(row.output_norm, precision),
    }


def _json(value: Any, precision: int | None) -> float | str | bool | None:
    return bool(value) if isinstance(value, bool | np.bool) else number(value, precision)
