"""The JSON documents of traces, tokens, heads, why, diff, the checks, masks and the calls of a program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from math import isfinite
from typing import TYPE_CHECKING, Any

from attncli.analysis.cell import AttentionCell, AttentionRow
from attncli.errors import InputMismatchError, metadata_json
from attncli.formats.json import array, dumps, plain
from attncli.trace.tokenization import SCHEMA as TOKENS_SCHEMA
from attncli.trace.tokenization import Tokenization
from attncli.trace.trace import SCHEMA, Trace

if TYPE_CHECKING:
    from attncli.analysis.ablation import Ablation
    from attncli.analysis.agreement.compare import Agreement
    from attncli.analysis.agreement.question import Cell
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
    from attncli.trace.layer import LayerTrace
    from attncli.trace.tokens import Token, Tokens
    from attncli.trace.view import Cells, View

_DEFAULT = ("scores", "mask", "weights", "metrics")
_OF_TOP_KEYS = ("metrics",)  # where the heaviest keys stand in for the matrices
_ARRAY_NAMES = {"next": "layer_output"}
_MOST_CELLS = 10**8  # of a trace's document


def document_of(number: int, result: Trace | Tokenization | Ablation, shown: Any) -> Iterator[str]:
    """Return the pieces of the document of a sentence: of its trace, its tokens, or the effects of cuts."""
    if isinstance(result, Trace):
        return _trace_document(number, result, shown)
    if isinstance(result, Tokenization):
        document = {
            "schema": TOKENS_SCHEMA,
            "sentence": number,
            **metadata_json(result.metadata),
            "source": {name: getattr(result, name) for name in ("kind", "model", "vocab")},
            "text": result.text,
            "pair": result.pair,
            "length": len(result.tokens),
            "limit": result.limit,
            "tokens": list(result.as_dicts()),
        }
        return iter([dumps(document)])
    return iter([_ablation_document(number, result, shown.precision)])


# --- traces ---


def _trace_document(sentence: int, trace: Trace, view: View) -> Iterator[str]:
    """Return the document of a sentence's trace, a piece for each head.

    Rows are query tokens, columns key tokens, in the order listed.

    Raises:
        InputMismatchError: its matrices have too many cells.
    """
    rows, columns = view.rows(trace), view.columns(trace)
    layers = [(layer, view.cells(trace, layer)) for layer in trace.layers]
    count = sum(len(layer.heads) * len(cells.rows) * len(cells.columns) for layer, cells in layers)
    if view.top_keys is None and count > _MOST_CELLS and view.parts(_DEFAULT) & {"scores", "mask", "weights"}:
        raise InputMismatchError(f"JSON of {count:,} cells; give --top-keys 10, or -o attention.parquet")
    queries = keys = _listed(trace.query_tokens, rows)
    if trace.query_tokens is not trace.key_tokens or rows != columns or trace.generated:
        keys = _listed(trace.key_tokens, columns)
    for row, query in zip(rows, queries, strict=True):
        if row in trace.predicted:  # the token that the model wrote after it
            query["predicted"] = _named(trace.predicted[row])
    following = [_named(each.token) | {"logit": each.logit, "logprob": each.logprob} for each in trace.next_tokens]
    before = {
        "schema": SCHEMA,
        "sentence": sentence,
        **metadata_json(trace.metadata),
        **_described(trace),
        **({} if trace.origin is None else {"derived": trace.origin.as_dict()}),
        **trace.described_pictures,
        **({"next": following} if "next" in (view.show or ()) else {}),
        "query_tokens": queries,
        "key_tokens": keys,
    }
    return _object(before, "layers", (_layer(trace, layer, cells, view) for layer, cells in layers))


def _object(members: dict[str, Any], last: str, items: Iterable[Iterable[str]]) -> Iterator[str]:
    """Return the pieces of an object whose last member is an array of pieces."""
    return chain([f'{dumps(members)[:-1]},"{last}":'], array(items), "}")


def _described(trace: Trace) -> dict[str, Any]:
    return {"source": trace.source.as_dict(), "text": trace.text, "pair": trace.pair, "target": trace.target}


def _listed(tokens: Tokens, chosen: Iterable[int]) -> list[dict[str, Any]]:
    return [tokens[index].as_dict() for index in chosen]


def _named(token: Token) -> dict[str, Any]:
    return {"id": token.id, "text": token.text}


def _layer(trace: Trace, layer: LayerTrace, cells: Cells, view: View) -> Iterator[str]:
    parts = view.parts(_DEFAULT if view.top_keys is None else _OF_TOP_KEYS)
    members = {
        "layer": layer.label,
        "kind": layer.kind,
        "scale": layer.scale,
        "softcap": layer.softcap,
        "capture": layer.capture,
        "shapes": layer.shapes,
        "proof": layer.proof and layer.proof._asdict(),
    }
    arrays = {"embeddings": layer.inputs[cells.rows]} if "embeddings" in parts and layer.inputs is not None else {}
    if "output" in parts and (projected := layer.projected(cells.rows)) is not None:
        arrays["projected"] = projected
    heads = (_head(trace, layer, head, view, cells, parts - layer.missing) for head in layer.heads)
    return _object(members | plain(arrays, view.precision), "heads", heads)


def _head(
    trace: Trace, layer: LayerTrace, index: int, view: View, cells: Cells, parts: frozenset[str]
) -> Iterator[str]:
    """Yield the pieces of a head's object, one for each of its matrices."""
    from attncli.analysis.metrics import head_metrics

    head, columns = layer.head(index, cells.rows), cells.of_columns

    def member(name: str, value: Any) -> str:
        return f',"{name}":{dumps(value, view.precision)}'

    yield f'{{"head":{dumps(layer.head_label(index))}'
    if view.top_keys is not None:  # by their index in the sequence, heaviest first
        yield member("top_keys", [
            {"keys": [cells.columns[place] for place in places.tolist()], layer.measure: weights}
            for places, weights in head.top_keys(columns, view.top_keys)
        ])  # fmt: skip
    for part in ("q", "k", "v"):
        if part in parts:
            yield member(part, getattr(head, part) if part == "q" else getattr(head, part)[columns])
    for part in ("scores", "mask", "weights"):
        if part in parts:
            yield member(layer.measure if part == "weights" else part, getattr(head, part)[:, columns])
    if "output" in parts:
        yield member("output", head.output)
    if "metrics" in parts:  # which describe the whole head, whichever of its rows are shown
        all_rows = head if len(head.queries) == layer.num_queries else layer.head(index)
        yield member("metrics", head_metrics(trace, layer, all_rows))
    yield "}"


def _ablation_document(sentence: int, ablation: Ablation, precision: int | None) -> str:
    numbers = {name: getattr(ablation, name) for name in ("before", "after", "change", "direct")}
    return dumps({
        "schema": "attncli.ablation/1",
        "sentence": sentence,
        **metadata_json(ablation.metadata),
        "source": ablation.source.as_dict(),
        "text": ablation.text,
        "pair": ablation.pair,
        "tokens": [token.as_dict() for token in ablation.tokens],
        "outcome": {
            "kind": ablation.kind,
            **{name: token and _named(token) for name, token in ablation.measured.items()},
            "targets": ablation.targets,
        },
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
    return dumps({"schema": "attncli.findings/1", "ok": is_ok, **extra, "findings": listed}) + "\n"


def what_was_run(report: Report) -> dict[str, Any]:
    """Return the entries of a checkpoint's check besides the findings."""
    return {
        "model": report.model,
        "architecture": report.architecture,
        **({} if report.tower is None else {"tower": report.tower}),
        "dtype": report.dtype,
        "tokens": report.tokens,
        "implied": [{"mask": mask, "kind": kind, "layers": layers} for mask, kind, layers in report.masks],
        "invariances": [_compared(each) for each in report.invariances],
    }


def _compared(invariance: Invariance) -> dict[str, Any]:
    named = {name: value for name, value in vars(invariance).items() if name != "has_failed"}
    for name in ("layer", "first"):
        index, kind = named[name] or (None, None)
        named[name] = None if index is None else {"layer": index, "kind": kind}
    changes = [{"layer": layer, "kind": kind, "change": size} for (layer, kind), size in invariance.changes.items()]
    return named | {"changes": changes}


def what_was_read(subject: MaskGrid) -> dict[str, Any]:
    """Return the entries of a mask's check besides the findings."""
    return {
        "convention": None if subject.reading is None or subject.is_ambiguous else subject.reading.convention,
        "dtype": subject.stored and subject.stored.dtype,
        "shape": list(subject.shape),
    }


def write_masks(subjects: Sequence[MaskGrid], more: Sequence[dict[str, Any]] | None = None) -> Iterator[str]:
    """Yield one document for one mask; an array for masks that differ by head, or with `more` members of each."""
    pairs = zip(subjects, [{}] * len(subjects) if more is None else more, strict=True)
    planes = [(subject, plane, extra) for subject, extra in pairs for plane in range(len(subject.allowed))]
    documents = ([dumps(_mask(*each))] for each in planes)
    yield from array(documents, ",\n") if more is not None or len(planes) > 1 else next(documents)
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
        "mask": allowed,
        "bias": None,
    }


def write_calls(calls: Calls) -> str:
    """Return the document of the calls of a program, an entry for each module at each place."""
    number, ranks = calls.rank or (None, None)
    places = [_call(track) for track in calls.tracks]
    document = {"schema": "attncli.calls/1", "places": places, "seconds": calls.seconds, "notes": calls.notes}
    return dumps(document | {"rank": number, "ranks": ranks}) + "\n"


def write_proofs(proofs: Sequence[ModelProof]) -> str:
    """Return the document of a proof, or an array of several."""
    documents = [proof.as_dict() for proof in proofs]
    return dumps(documents[0] if len(documents) == 1 else documents) + "\n"


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
        "sizes": dict(zip(names, track.sizes, strict=True)),
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
    document = {
        "schema": "attncli.heads/1",
        "source": report.source.as_dict(),
        "sentences": report.sentences,
        "heads": [plain(_summary(report, head), precision) for head in report.heads],
    }
    return dumps(document) + "\n"


def _summary(report: HeadReport, head: HeadSummary) -> dict[str, Any]:
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
    return dumps({
        "schema": "attncli.pairs/1",
        "source": report.source.as_dict(),
        "texts": report.sentences,
        "pairs": report.pairs,
        "left_out": report.left_out,
        "by_chance": plain(report.by_chance, precision),
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
    return dumps({
        "schema": "attncli.composition/1",
        **_described(composition.trace),
        **_place(cell.row),
        "key": cell.key.index,
        "key_token": cell.key.as_dict(),
        "score": plain(composition.score, precision),
        "terms": [plain(term._asdict(), precision) for term in composition.terms],
    }) + "\n"  # fmt: skip


def _place(row: AttentionRow) -> dict[str, Any]:
    return {
        "layer": row.layer.layer,
        "kind": row.layer.kind,
        "head": row.head.head,
        "capture": row.layer.capture,
        "proof": row.layer.proof and row.layer.proof._asdict(),
        "query": row.query.index,
        "query_token": row.query.as_dict(),
    }


def _why(trace: Trace, shown: AttentionRow | AttentionCell, precision: int | None) -> str:
    row, members = (shown.row, _cell(shown)) if isinstance(shown, AttentionCell) else (shown, _row(shown))
    # Entries of the whole row: the sink's logit and weight, and the length of the output.
    totals = {name: getattr(row, name) for name in ("sink", "sink_weight", "output_norm")}
    return dumps({"schema": "attncli.why/1", **_described(trace), **_place(row), **plain(members | totals, precision)})


def _row(row: AttentionRow) -> dict[str, Any]:
    """Return the keys of a row by weight, all of them."""
    columns = {"score": row.scores, "allowed": row.allowed, "weight": row.weights, "value_norm": row.value_norms}
    columns |= {"contribution_norm": row.contribution_norms, "output_share": row.output_shares}
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

    stages = (
        "dot_product", "scaled", "bias", "score", "allowed", "masked", "exponential", "weight", "value_norm",
        "contribution_norm", "output_share",
    )  # fmt: skip
    return {
        "key": cell.key.index,
        "key_token": cell.key.as_dict(),
        "dimensions": dimensions or None,
        "scale": layer.scale,
        "softcap": layer.softcap,
        "highest": None if parts is None else parts.highest,
        "total": None if parts is None else parts.total,
        **{name: getattr(cell, name) for name in stages},
    }


# --- diff ---


def write_difference(difference: Difference, precision: int | None) -> str:
    """Return the document: every compared head, and the cells that changed most, the most changed ones first."""
    return dumps({
        "schema": "attncli.diff/1",
        "a": _compared_trace(difference.first),
        "b": _compared_trace(difference.second),
        "shared": {"queries": difference.queries.pairs, "keys": difference.keys.pairs},
        "unit": "bits",
        "heads": [plain(vars(head), precision) for head in difference.heads],
        "cells": [plain(_changed_cell(cell), precision) for cell in difference.cells],
        "notes": difference.notes,
    }) + "\n"  # fmt: skip


def write_agreement(agreement: Agreement) -> str:
    """Return the document: the difference of each array of each layer, and the stages at which two runs part."""
    from attncli.render.agreement import not_compared, sentences

    layers = [
        {"layer": layer, "arrays": {_ARRAY_NAMES.get(name, name): _cell_of(cell) for name, cell in row.items()}}
        for layer, row in agreement.rows.items()
    ]
    partings = [
        {
            "stage": parting.stage,
            "layers": parting.layers,
            "difference": _cell_of(parting.cell)["difference"],
            "rounding": _cell_of(parting.cell)["rounding"],
            "cause": parting.cause and parting.cause._asdict(),
        }
        for parting in agreement.partings
    ]
    names = dict(zip("ab", agreement.names, strict=True))
    head = {"schema": "attncli.agreement/1", **names, "dtype": agreement.dtype, "agrees": agreement.agrees}
    body = {"partings": partings, "layers": layers, "sentences": sentences(agreement), "notes": agreement.notes}
    unseen = [f"{clause[0].upper()}{clause[1:]}." for clause in (not_compared(agreement),) if clause]
    body |= {"findings": [one.as_dict() for one in agreement.findings]}
    body |= {"not_compared": [*unseen, *agreement.not_compared]}
    return dumps(head | body) + "\n"


def _cell_of(cell: Cell) -> dict[str, Any]:
    """Return the numbers of a cell; None for those that are not finite."""
    return {name: number if isfinite(number or 0) else None for name, number in cell._asdict().items()}


def _compared_trace(trace: Trace) -> dict[str, Any]:
    return {
        **_described(trace),
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
