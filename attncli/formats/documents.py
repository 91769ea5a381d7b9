"""The JSON documents of heads, why, diff, the checks and masks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.analysis.cell import AttentionCell, AttentionRow
from attncli.analysis.check.report import Invariance, Report
from attncli.analysis.diff import CellDifference, Difference, Differences, HeadDifference, HeadDifferences
from attncli.analysis.heads import HeadReport, HeadSummary
from attncli.analysis.why import Explained
from attncli.attention import row_blocks
from attncli.formats.answers import array, dumped, opened
from attncli.formats.json import described
from attncli.formats.numbers import matrix, number, proven
from attncli.masks.findings import Finding
from attncli.masks.mask_grid import MaskGrid
from attncli.trace.trace import Trace

if TYPE_CHECKING:
    pass


def write_findings(is_ok: bool, findings: Sequence[Finding], extra: dict[str, Any]) -> str:
    """Return the document of a check."""
    listed = [finding.as_dict() for finding in findings]
    return dumped({"schema": "attncli.findings/1", "ok": is_ok, **extra, "findings": listed}) + "\n"


def what_was_run(report: Report) -> dict[str, Any]:
    """Return what the document of a checkpoint's check says besides the findings."""
    masks = [{"mask": mask, "kind": kind, "layers": list(layers)} for mask, kind, layers in report.masks]
    return {
        "model": report.model,
        "architecture": report.architecture,
        **({} if report.tower is None else {"tower": report.tower}),
        "dtype": report.dtype,
        "tokens": list(report.tokens),
        "implied": masks,
        "invariances": [_compared(each) for each in report.invariances],
    }


def _compared(invariance: Invariance) -> dict[str, Any]:
    named = {name: value for name, value in vars(invariance).items() if name != "has_failed"}
    for place in ("layer", "first"):
        index, kind = named[place] or (None, None)
        named[place] = None if index is None else {"layer": index, "kind": kind}
    changes = [
        {"layer": layer, "kind": kind, "change": number(size, None)}
        for (layer, kind), size in invariance.changes.items()
    ]
    return named | {"change": number(invariance.change, None), "changes": changes}


def what_was_read(subject: MaskGrid) -> dict[str, Any]:
    """Return what the document of a mask's check says besides the findings."""
    return {
        "convention": None if subject.reading is None or subject.is_ambiguous else subject.reading.convention,
        "dtype": subject.stored and subject.stored.dtype,
        "shape": list(subject.shape),
    }


def write_masks(subjects: Sequence[MaskGrid], more: Sequence[dict[str, Any]] | None = None) -> Iterator[str]:
    """Yield one document for one mask; an array of them for masks that differ by head.

    Args:
        subjects: the masks.
        more: members that the documents of each mask have besides; with them it is always an array.
    """
    extra = [{} for _ in subjects] if more is None else more
    pairs = zip(subjects, extra, strict=True)
    planes = [(subject, plane, added) for subject, added in pairs for plane in range(len(subject.allowed))]
    documents = [_mask(*plane) for plane in planes]
    yield from array(documents, ",\n") if more is not None or len(planes) > 1 else documents[0]
    yield "\n"


def _mask(subject: MaskGrid, plane: int, more: dict[str, Any]) -> Iterator[str]:
    allowed = subject.allowed[plane]
    queries, keys = allowed.shape
    visible = allowed.sum(axis=1)
    members = {
        "schema": "attncli.mask/1",
        "expression": subject.name or None,
        "queries": queries,
        "keys": keys,
        "past": subject.past,
        "plane": subject.planes[plane] or None,
        "visible": {"min": int(visible.min()), "max": int(visible.max())},
        "density": int(visible.sum()) / allowed.size,
        **more,
    }
    blocks = row_blocks(np.arange(queries), keys)
    yield opened(members) + ', "mask": '
    yield from matrix((allowed[rows] for rows in blocks), None)
    yield ', "bias": null}'


def write_heads(report: HeadReport, precision: int | None) -> str:
    """Return the document; over several sentences every metric is a mean, beside its deviation and count.

    Args:
        report: the heads.
        precision: digits after the point; None is all of them.
    """
    return dumped({
        "schema": "attncli.heads/1",
        "source": report.source.as_dict(),
        "sentences": report.sentences,
        "heads": [_head_entry(report, head, precision) for head in report.heads],
    }) + "\n"  # fmt: skip


def _head_entry(report: HeadReport, head: HeadSummary, precision: int | None) -> dict[str, Any]:
    def numbers(values: Mapping[str, float | None]) -> dict[str, Any]:
        return {name: number(values[name], precision) for name in report.names}

    labels = [
        {"label": label.name, **{name: number(getattr(label, name), precision) for name in _OF_LABELS}}
        for label in head.labels
    ]
    entry = {"layer": head.layer, "kind": head.kind, "head": head.head, **numbers(head.metrics)}
    if report.sentences > 1:
        entry |= {"std": numbers(head.std), "counts": {name: head.counts[name] for name in report.names}}
    return entry | {"label": labels[0]["label"] if labels else None, "labels": labels}


_OF_LABELS = ("score", "baseline", "gain")


def write_why(trace: Trace, explained: Explained, precision: int | None) -> Iterator[str]:
    """Yield one document for one cell or row; an array of them for several heads or layers."""
    documents = ([_one(trace, each, precision)] for each in explained)
    yield from array(documents, ",\n") if len(explained) > 1 else next(documents)
    yield "\n"


def _one(trace: Trace, one: AttentionRow | AttentionCell, precision: int | None) -> str:
    members = _cell(one, precision) if isinstance(one, AttentionCell) else _row(one, precision)
    return dumped({"schema": "attncli.why/1", **described(trace), **members})


def _row(row: AttentionRow, precision: int | None) -> dict[str, Any]:
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
        | {name: None if values is None else number(values[key], precision) for name, values in columns.items()}
        for key in row.ranked.tolist()
    ]
    return {**_place(row), "key": None, "keys": keys, **_totals(row, precision)}


def _cell(cell: AttentionCell, precision: int | None) -> dict[str, Any]:
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
        **{name: number(value, precision) for name, value in stages.items()},
        **_totals(cell.row, precision),
    }


def _place(row: AttentionRow) -> dict[str, Any]:
    return {
        "layer": row.layer.layer,
        "kind": row.layer.kind,
        "head": row.head.head,
        "capture": row.layer.capture,
        "proof": proven(row.layer.proof),
        "query": row.query.index,
        "query_token": row.query.as_dict(),
    }


def _totals(row: AttentionRow, precision: int | None) -> dict[str, Any]:
    """Return what belongs to the whole row: the sink's logit and weight, and the length of the output."""
    return {
        "sink": number(row.sink, precision),
        "sink_weight": number(row.sink_weight, precision),
        "output_norm": number(row.output_norm, precision),
    }


def write_difference(difference: Difference, precision: int | None) -> str:
    """Return the document: every compared head, and the cells that changed most, the most changed ones first.

    Args:
        difference: what to write.
        precision: digits after the point; None is all of them.
    """
    return dumped({
        "schema": "attncli.diff/1",
        "a": _compared_trace(difference.first),
        "b": _compared_trace(difference.second),
        "shared": {"queries": difference.queries.pairs, "keys": difference.keys.pairs},
        "unit": "bits",
        "heads": [_changed_head(head, precision) for head in difference.heads],
        "cells": [_changed_cell(cell, precision) for cell in difference.cells],
        "notes": difference.notes,
    }) + "\n"  # fmt: skip


def write_differences(found: Differences, precision: int | None) -> str:
    """Return the document of many sentences: every compared head, the most changed one first, and no cell.

    Args:
        found: what to write.
        precision: digits after the point; None is all of them.
    """
    return dumped({
        "schema": "attncli.diff/1",
        "a": {"source": found.first.as_dict()},
        "b": {"source": found.second.as_dict()},
        "sentences": found.sentences,
        "unit": "bits",
        "heads": [_changed_over_sentences(head, precision) for head in found.heads],
        "notes": found.notes,
    }) + "\n"  # fmt: skip


def _changed_over_sentences(head: HeadDifferences, precision: int | None) -> dict[str, Any]:
    return {
        "layer": head.layer,
        "kind": head.kind,
        "head": head.head,
        "jensen_shannon": number(head.jensen_shannon, precision),
        "std": number(head.std, precision),
        "count": head.count,
        "elsewhere": _both(head.elsewhere, precision),
    }


def _compared_trace(trace: Trace) -> dict[str, Any]:
    return {
        **described(trace),
        "query_tokens": [token.as_dict() for token in trace.query_tokens],
        "key_tokens": [token.as_dict() for token in trace.key_tokens],
    }


def _changed_head(head: HeadDifference, precision: int | None) -> dict[str, Any]:
    numbers = {"jensen_shannon": number(head.jensen_shannon, precision), "elsewhere": _both(head.elsewhere, precision)}
    return vars(head) | numbers


def _both(weights: tuple[float, float] | None, precision: int | None) -> list[Any] | None:
    return None if weights is None else [number(weight, precision) for weight in weights]


def _changed_cell(cell: CellDifference, precision: int | None) -> dict[str, Any]:
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
