"""The JSON documents of tokens, heads, why, diff, the checks, masks and the calls of a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.analysis.cell import AttentionCell, AttentionRow
from attncli.attention import row_blocks
from attncli.errors import metadata_json
from attncli.formats.json import described
from attncli.formats.json_stream import RowBlocks, array, dumped, pieces, plain
from attncli.formats.numbers import number, proven
from attncli.trace.tokenization import SCHEMA, Choice, Tokenization

if TYPE_CHECKING:
    from attncli.analysis.ablation import Ablation
    from attncli.analysis.calls.calls import Calls
    from attncli.analysis.calls.groups import ModuleCalls
    from attncli.analysis.check.report import Invariance, Report
    from attncli.analysis.composition import Composition
    from attncli.analysis.diff import CellDifference, Difference
    from attncli.analysis.heads import HeadReport, HeadSummary
    from attncli.analysis.pairs import PairReport
    from attncli.analysis.prove import ModelProof
    from attncli.analysis.why import Explained
    from attncli.masks.findings import Finding
    from attncli.masks.mask_grid import MaskGrid
    from attncli.trace.trace import Trace


def tokens_document(sentence: int, tokenization: Tokenization, choice: Choice) -> Iterator[str]:
    """Yield the document of a sentence's tokens, schema `attncli.tokens/1`."""
    yield dumped({
        "schema": SCHEMA,
        "sentence": sentence,
        **metadata_json(tokenization.metadata),
        "source": {name: getattr(tokenization, name) for name in ("kind", "model", "vocab")},
        "text": tokenization.text,
        "pair": tokenization.pair,
        "length": len(tokenization.tokens),
        "limit": tokenization.limit,
        "tokens": list(tokenization.as_dicts(choice)),
    })  # fmt: skip


def ablation_document(sentence: int, ablation: Ablation, precision: int | None) -> Iterator[str]:
    """Yield the document of the effects of cuts on the prediction of a sentence, schema `attncli.ablation/1`."""
    tokens = {
        name: None if token is None else {"id": token.id, "text": token.text}
        for name, token in ablation.measured.items()
    }
    numbers = {"before": ablation.before, "after": ablation.after, "change": ablation.change, "direct": ablation.direct}
    yield dumped({
        "schema": "attncli.ablation/1",
        "sentence": sentence,
        **metadata_json(ablation.metadata),
        "source": ablation.source.as_dict(),
        "text": ablation.text,
        "pair": ablation.pair,
        "tokens": [token.as_dict() for token in ablation.tokens],
        "outcome": {"kind": ablation.kind, **tokens, "targets": list(ablation.targets)},
        **plain(numbers, precision),
        "cut": [{"layer": layer, "head": head} for layer, head in ablation.cut],
        "with": None if ablation.edges else ablation.choice.with_,
        "edges": None if ablation.edges is None else _edge_counts(ablation),
        "heads": [plain(head._asdict(), precision) for head in ablation.heads],
    })  # fmt: skip


def _edge_counts(ablation: Ablation) -> dict[str, Any]:
    """Return how many edges each head has lost, and all of them together."""
    assert ablation.edges is not None
    heads = [
        {"layer": layer, "head": head, "cut": count.cut, "of": count.total}
        for (layer, head), count in zip(ablation.cut, ablation.edges, strict=True)
    ]
    cut, total = (sum(head[name] for head in heads) for name in ("cut", "of"))
    return {"expression": ablation.choice.edges, "cut": cut, "of": total, "heads": heads}


# --- checks and masks ---


def write_findings(is_ok: bool, findings: Sequence[Finding], extra: dict[str, Any]) -> str:
    """Return the document of a check."""
    listed = [finding.as_dict() for finding in findings]
    return dumped({"schema": "attncli.findings/1", "ok": is_ok, **extra, "findings": listed}) + "\n"


def what_was_run(report: Report) -> dict[str, Any]:
    """Return the entries of a checkpoint's check besides the findings."""
    return {
        "model": report.model,
        "architecture": report.architecture,
        **({} if report.tower is None else {"tower": report.tower}),
        "dtype": report.dtype,
        "tokens": list(report.tokens),
        "implied": [{"mask": mask, "kind": kind, "layers": list(layers)} for mask, kind, layers in report.masks],
        "invariances": [_compared(each) for each in report.invariances],
    }


def _compared(invariance: Invariance) -> dict[str, Any]:
    named = {name: value for name, value in vars(invariance).items() if name != "has_failed"}
    for name in ("layer", "first"):
        index, kind = named[name] or (None, None)
        named[name] = None if index is None else {"layer": index, "kind": kind}
    changes = [{"layer": layer, "kind": kind, "change": size} for (layer, kind), size in invariance.changes.items()]
    return named | plain({"change": invariance.change, "changes": changes}, None)


def what_was_read(subject: MaskGrid) -> dict[str, Any]:
    """Return the entries of a mask's check besides the findings."""
    return {
        "convention": None if subject.reading is None or subject.is_ambiguous else subject.reading.convention,
        "dtype": subject.stored and subject.stored.dtype,
        "shape": list(subject.shape),
    }


def write_masks(subjects: Sequence[MaskGrid], more: Sequence[dict[str, Any]] | None = None) -> Iterator[str]:
    """Yield one document for one mask; an array of them for masks that differ by head.

    With members that the documents have besides it is always an array.
    """
    pairs = zip(subjects, [{}] * len(subjects) if more is None else more, strict=True)
    documents = [
        pieces(_mask(subject, plane, extra), None) for subject, extra in pairs for plane in range(len(subject.allowed))
    ]
    yield from array(documents, ",\n") if more is not None or len(documents) > 1 else documents[0]
    yield "\n"


def _mask(subject: MaskGrid, plane: int, extra: dict[str, Any]) -> dict[str, Any]:
    allowed = subject.allowed[plane]
    queries, keys = allowed.shape
    visible = allowed.sum(axis=1)
    return {
        "schema": "attncli.mask/1",
        "expression": subject.name or None,
        "queries": queries,
        "keys": keys,
        "past": subject.past,
        "plane": subject.planes[plane] or None,
        "visible": {"min": int(visible.min()), "max": int(visible.max())},
        "density": int(visible.sum()) / allowed.size,
        **extra,
        "mask": RowBlocks(allowed[rows] for rows in row_blocks(np.arange(queries), keys)),
        "bias": None,
    }


def write_calls(calls: Calls) -> str:
    """Return the document of the calls of a program, an entry for each module at each place."""
    number, ranks = calls.rank or (None, None)
    places = [_call(track) for track in calls.tracks]
    document = {"schema": "attncli.calls/1", "places": places, "seconds": calls.seconds, "notes": calls.notes}
    return dumped(document | {"rank": number, "ranks": ranks}) + "\n"


def write_proofs(proofs: Sequence[ModelProof]) -> str:
    """Return the document of a proof, or an array of several."""
    documents = [proof.as_dict() for proof in proofs]
    for leak in (one for document in documents for one in document["moved"]):
        leak |= {name: number(leak[name], None) for name in ("size", "allowed_size")}
    return dumped(documents[0] if len(documents) == 1 else documents) + "\n"


def _call(track: ModuleCalls) -> dict[str, Any]:
    from attncli.analysis.calls.groups import NOTHING_EXPECTED

    names = ("batch", "heads", "queries", "keys")
    return {
        "place": str(track.place),
        "function": track.place.function,
        "module": track.place.module,
        "api": track.api,
        "calls": track.calls,
        **dict(zip(names, track.shape, strict=True)),
        "sizes": {name: list(span) for name, span in zip(names, track.sizes, strict=True)},
        "dtype": track.dtype,
        "mask": track.mask,
        "expected": None if track.expected == NOTHING_EXPECTED else track.expected,
        "checked": track.is_judged and track.expected != NOTHING_EXPECTED,
        "findings": [
            one.finding.as_dict() | {"made_at": one.finding.made_at, "calls": one.calls} for one in track.all_findings
        ],
    }


# --- heads ---


def write_heads(report: HeadReport, precision: int | None) -> str:
    """Return the document; over several sentences every metric is a mean, with its deviation and count."""
    return dumped({
        "schema": "attncli.heads/1",
        "source": report.source.as_dict(),
        "sentences": report.sentences,
        "heads": [plain(_head(report, head), precision) for head in report.heads],
    }) + "\n"  # fmt: skip


def _head(report: HeadReport, head: HeadSummary) -> dict[str, Any]:
    def of(values: Any) -> dict[str, Any]:
        return {name: values[name] for name in report.names}

    entry = {"layer": head.layer, "kind": head.kind, "head": head.head, **of(head.metrics)}
    if report.sentences > 1:
        entry |= {"std": of(head.std), "counts": of(head.counts)}
    labels = [
        {"label": label.name, **{name: getattr(label, name) for name in ("score", "baseline", "gain")}}
        for label in head.labels
    ]
    return entry | {"label": labels[0]["label"] if labels else None, "labels": labels}


def write_pairs(report: PairReport, precision: int | None) -> str:
    """Return the document of how heads do on pairs."""
    return dumped({
        "schema": "attncli.pairs/1",
        "source": report.source.as_dict(),
        "texts": report.sentences,
        "pairs": report.pairs,
        "left_out": list(report.left_out),
        **plain({"by_chance": report.by_chance}, precision),
        "heads": [plain(asdict(head), precision) for head in report.heads],
    }) + "\n"  # fmt: skip


# --- why ---


def write_why(trace: Trace, explained: Explained, precision: int | None) -> Iterator[str]:
    """Yield one document for one cell or row; an array of them for several heads or layers."""
    documents = ([_why(trace, each, precision)] for each in explained)
    yield from array(documents, ",\n") if len(explained) > 1 else next(documents)
    yield "\n"


def write_composition(composition: Composition, precision: int | None) -> str:
    """Return the document of a score and its terms, the key's before the query's, the largest margin first."""
    cell = composition.cell
    key = {"key": cell.key.index, "key_token": cell.key.as_dict()}
    members = {"score": composition.score, "terms": [term._asdict() for term in composition.terms]}
    return dumped({
        "schema": "attncli.composition/1",
        **described(composition.trace),
        **_place(cell.row),
        **key,
        **plain(members, precision),
    }) + "\n"  # fmt: skip


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


def _why(trace: Trace, one: AttentionRow | AttentionCell, precision: int | None) -> str:
    row, members = (one.row, _cell(one)) if isinstance(one, AttentionCell) else (one, _row(one))
    # Entries of the whole row: the sink's logit and weight, and the length of the output.
    totals = {"sink": row.sink, "sink_weight": row.sink_weight, "output_norm": row.output_norm}
    return dumped({"schema": "attncli.why/1", **described(trace), **_place(row), **plain(members | totals, precision)})


def _row(row: AttentionRow) -> dict[str, Any]:
    """Return the keys of a row by weight, all of them."""
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
        | {name: None if values is None else values[key] for name, values in columns.items()}
        for key in row.ranked.tolist()
    ]
    return {"key": None, "keys": keys}


def _cell(cell: AttentionCell) -> dict[str, Any]:
    """Return the dimensions of a cell by their product, all of them, and every stage."""
    layer, parts = cell.row.layer, cell.row.softmax
    vectors = {"q": cell.q, "k": cell.k, "product": cell.products}
    dimensions = [
        {"dim": dim, **{name: vector[dim] for name, vector in vectors.items() if vector is not None}}
        for dim in (cell.ranked.tolist() if cell.products is not None else [])
    ]
    return {
        "key": cell.key.index,
        "key_token": cell.key.as_dict(),
        "dimensions": dimensions or None,
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


# --- diff ---


def write_difference(difference: Difference, precision: int | None) -> str:
    """Return the document: every compared head, and the cells that changed most, the most changed ones first."""
    return dumped({
        "schema": "attncli.diff/1",
        "a": _compared_trace(difference.first),
        "b": _compared_trace(difference.second),
        "shared": {"queries": difference.queries.pairs, "keys": difference.keys.pairs},
        "unit": "bits",
        "heads": [plain(vars(head), precision) for head in difference.heads],
        "cells": [plain(_changed_cell(cell), precision) for cell in difference.cells],
        "notes": difference.notes,
    }) + "\n"  # fmt: skip


def _compared_trace(trace: Trace) -> dict[str, Any]:
    return {
        **described(trace),
        "query_tokens": [token.as_dict() for token in trace.query_tokens],
        "key_tokens": [token.as_dict() for token in trace.key_tokens],
    }


def _changed_cell(cell: CellDifference) -> dict[str, Any]:
    sides = zip("ab", cell.query, cell.key, cell.weights, strict=True)
    return {
        "layer": cell.layer,
        "kind": cell.kind,
        "head": cell.head,
        **{side: {"query": query, "key": key, "weight": weight} for side, query, key, weight in sides},
        "difference": cell.difference,
    }
