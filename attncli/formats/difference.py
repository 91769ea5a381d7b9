"""The JSON document of a comparison: `attncli.diff/1`."""

from __future__ import annotations

import json
from typing import Any

from attncli.analysis.diff import CellDifference, Difference, HeadDifference
from attncli.formats.numbers import number
from attncli.trace.trace import Trace


def write_difference(difference: Difference, precision: int | None) -> str:
    """Return the document: every compared head, and the cells that changed most, the most changed ones first.

    Args:
        difference: what to write.
        precision: digits after the point; None is all of them.
    """
    return (
        json.dumps(
            {
                "schema": "attncli.diff/1",
                "a": _described(difference.first),
                "b": _described(difference.second),
                "shared": {"queries": difference.queries.pairs, "keys": difference.keys.pairs},
                "unit": "bits",
                "heads": [_head(head, precision) for head in difference.heads],
                "cells": [_cell(cell, precision) for cell in difference.cells],
                "notes": difference.notes,
            },
            allow_nan=False,
        )
        + "\n"
    )


def _described(trace: Trace) -> dict[str, Any]:
    return {
        "source": trace.source.as_dict(),
        "text": trace.text,
        "pair": trace.pair,
        "target": trace.target,
        "query_tokens": [token.as_dict() for token in trace.query_tokens],
        "key_tokens": [token.as_dict() for token in trace.key_tokens],
    }


def _head(head: HeadDifference, precision: int | None) -> dict[str, Any]:
    elsewhere = None if head.elsewhere is None else [number(weight, precision) for weight in head.elsewhere]
    return {**vars(head), "jensen_shannon": number(head.jensen_shannon, precision), "elsewhere": elsewhere}


def _cell(cell: CellDifference, precision: int | None) -> dict[str, Any]:
    sides = zip("ab", cell.query, cell.key, cell.weights, strict=True)
    return {
        "layer": cell.layer,
        "kind": cell.kind,
        "head": cell.head,
        **{
            side: {"query": query, "key": key, "weight": number(weight, precision)}
            for side, query, key, weight in sides
        },
        "difference": number(cell.difference, precision),
    }
