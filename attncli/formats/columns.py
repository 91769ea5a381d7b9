"""Results as columns of values, once: rows of csv and tsv, Parquet and data frames are written from these.

A column of a block of rows is an array, a `IndexedColumn`, a list that may hold None, or one value that all rows share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.analysis.metric_names import OF_ANY_TEXT, OF_PICTURES, names_for
from attncli.errors import Metadata
from attncli.trace.tokenization import Choice, Tokenization
from attncli.trace.top_keys import top_keys

if TYPE_CHECKING:
    from jaxtyping import Int

    from attncli.analysis.ablation import Ablation
    from attncli.analysis.calls.calls import Calls
    from attncli.analysis.composition import Composition
    from attncli.analysis.heads import HeadReport
    from attncli.analysis.pairs import PairReport
    from attncli.trace.layer import HeadTrace
    from attncli.trace.layout import SideLayout
    from attncli.trace.trace import Trace
    from attncli.trace.view import Cells, View

# Each column with the name of its type in Parquet.
CELLS = {
    "sentence": "int64", "layer": "int32", "kind": "string", "head": "int32", "query": "int32", "query_token": "string",
    "key": "int32", "key_token": "string", "score": "float32", "allowed": "bool_", "weight": "float32",
}  # fmt: skip
PLACES = dict.fromkeys(("image", "row", "column"), "int32")
PLACES |= dict.fromkeys(("left", "top", "right", "bottom"), "float32")
"""Of a query or a key that is a cell of a picture: which picture and cell, and where it lies, in pixels."""
METRICS: dict[str, str] = {
    "sentence": "int64", "layer": "int32", "kind": "string", "head": "int32", "queries": "int32", "keys": "int32",
    **dict.fromkeys(OF_ANY_TEXT, "float32"),
}  # fmt: skip
TOKENS = {
    "sentence": "int64", "index": "int32", "id": "int32", "text": "string", "start": "int32", "end": "int32",
    "special": "bool_", "segment": "int32", "word": "int32", "unknown": "bool_",
}  # fmt: skip
WORDS = {name: kind for name, kind in TOKENS.items() if name not in ("id", "word")} | {"pieces": "string"}
ABLATIONS = {
    "sentence": "int64", "layer": "int32", "head": "int32", "outcome": "string", "next": "string", "against": "string",
    **dict.fromkeys(("before", "after", "change", "direct"), "float64"),
}  # fmt: skip
CALLS = ("place", "function", "module", "api", "calls", "heads", "queries", "keys", "dtype", "mask", "findings")

Block = Mapping[str, Any]


class IndexedColumn(NamedTuple):
    """A column of few values, texts or numbers or None.

    Each row has one of them, by its place.
    """

    values: Sequence[Any]
    places: Int[np.ndarray, " N"]


class Table(NamedTuple):
    """Columns of values.

    Blocks of rows are made as they are read, each with all columns.
    """

    types: Mapping[str, str]
    blocks: Iterator[Block]


def types_of(result: View | Choice | None) -> dict[str, str]:
    """Return the columns of a view of traces, of a choice of tokens, or of cuts, where there is no row."""
    if result is None:
        return ABLATIONS
    if isinstance(result, Choice):
        return WORDS if result.words else TOKENS
    return METRICS if result.is_of_metrics else CELLS


def with_metadata(types: Mapping[str, str], metadata: Metadata) -> dict[str, str]:
    """Return columns with those of a sentence's metadata inserted after its number."""
    (first, kind), *rest = types.items()
    return {first: kind, **dict.fromkeys(metadata, "string"), **dict(rest)}


def table_of(number: int, result: Trace | Tokenization | Ablation, shown: Any) -> Table:
    """Return the columns of a sentence: of its cells, of the metrics of its heads, of its tokens, or of cuts."""
    from attncli.analysis.ablation import Ablation

    if isinstance(result, Ablation):
        return Table(with_metadata(ABLATIONS, result.metadata), iter([_cuts(number, result)]))
    if isinstance(result, Tokenization):
        assert isinstance(shown, Choice)
        return Table(with_metadata(types_of(shown), result.metadata), iter([_tokens(number, result, shown)]))
    assert not isinstance(shown, Choice)
    types = types_of(shown)
    if shown.is_of_metrics:
        types = types | (dict.fromkeys(OF_PICTURES, "float32") if result.grids else {})
        return Table(with_metadata(types, result.metadata), iter([_metrics(number, result)]))
    layer = result.layers[0]
    # A layer or head that is derived from several has a text where these have a number.
    for name, label in (("layer", layer.label), ("head", layer.head_label(layer.heads[0]))):
        types = types | ({name: "string"} if isinstance(label, str) else {})
    if layer.measure == "norms":
        types = {"norm" if name == "weight" else name: kind for name, kind in types.items()}
    if result.grids:
        types = types | {f"{role}_{name}": kind for role in ("query", "key") for name, kind in PLACES.items()}
    return Table(with_metadata(types, result.metadata), _cells(number, result, shown))


def _cells(number: int, trace: Trace, view: View) -> Iterator[Block]:
    """Yield the cells that are shown, a block of query rows of a head at a time."""
    for layer in trace.layers:
        cells = view.cells(trace, layer)
        queries, keys = ([token.text for token in side] for side in (cells.row_tokens, cells.column_tokens))
        in_pictures = [
            _places_in(layout, max(layer.num_queries, layer.num_keys)) for layout in trace.layouts(layer)
        ] * bool(trace.grids)
        for index in layer.heads:
            for block in layer.head(index, cells.rows).blocks():
                rows, columns = _places(block, cells, view)
                of_queries, of_keys = np.array(block.queries)[rows], np.array(cells.columns)[columns]

                def shown(values: Any, cells: Cells = cells, at: Any = (rows, columns)) -> Any:
                    return values[:, cells.of_columns][at]

                yield {
                    "sentence": number,
                    **trace.metadata,
                    "layer": layer.label,
                    "kind": layer.kind,
                    "head": layer.head_label(index),
                    "query": of_queries,
                    "query_token": IndexedColumn(queries, of_queries),
                    "key": of_keys,
                    "key_token": IndexedColumn(keys, of_keys),
                    "score": None if "scores" in layer.missing else shown(block.scores),  # derived layers have none
                    "allowed": shown(block.mask),
                    "norm" if layer.measure == "norms" else "weight": shown(block.weights),
                    **{
                        f"{role}_{name}": IndexedColumn(values, places)
                        for role, places, found in zip(
                            ("query", "key"), (of_queries, of_keys), in_pictures, strict=False
                        )
                        for name, values in found.items()
                    },
                }


def _places_in(layout: SideLayout, count: int) -> dict[str, list[Any]]:
    """Return the `PLACES` of `count` positions; None outside of grids, or where the picture's size is unknown."""
    found: dict[str, list[Any]] = {name: [None] * count for name in PLACES}
    for grid in layout.grids:
        picture = layout.pictures[grid.image] if grid.image < len(layout.pictures) else None
        size = (picture.width, picture.height) if picture else (0, 0)
        for (row, column), position in np.ndenumerate(grid.positions):
            box = grid.cell_box(row, column, *size) if picture or grid.box else [None] * 4
            for name, value in zip(PLACES, (grid.image, row, column, *box), strict=True):
                found[name][position] = value
    return found


def _places(block: HeadTrace, cells: Cells, view: View) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the row and the column of each cell that is shown; of the heaviest keys, the heaviest first."""
    if view.top_keys is None:
        places = [np.arange(len(cells.columns))] * len(block.queries)
    else:
        places = [found for found, _ in top_keys(block, cells.of_columns, view.top_keys)]
    return np.repeat(np.arange(len(places)), [len(found) for found in places]), np.concatenate(places)


def _metrics(number: int, trace: Trace) -> Block:
    """Return a row a head: the metrics of the sentence alone, as float32 with its own shortest digits."""
    from attncli.analysis.metrics import trace_metrics

    heads = [(layer, head) for layer in trace.layers for head in layer.heads]
    names = names_for(bool(trace.grids))
    measured = trace_metrics(trace).heads[:, : len(names)]
    values = [[None if value != value else float(str(value)) for value in row] for row in measured]
    return {
        "sentence": number,
        **trace.metadata,
        "layer": [layer.label for layer, _ in heads],
        "kind": [layer.kind for layer, _ in heads],
        "head": [layer.head_label(head) for layer, head in heads],
        "queries": [layer.num_queries for layer, _ in heads],
        "keys": [layer.num_keys for layer, _ in heads],
        **dict(zip(names, map(list, zip(*values, strict=True)), strict=True)),
    }


def _tokens(number: int, tokenization: Tokenization, choice: Choice) -> Block:
    tokens = list(tokenization.as_dicts(choice))
    columns = {name: [token[name] for token in tokens] for name in types_of(choice) if name != "sentence"}
    if choice.words:
        columns["pieces"] = [" ".join(map(str, pieces)) for pieces in columns["pieces"]]
    return {"sentence": number, **tokenization.metadata, **columns}


def _cuts(number: int, ablation: Ablation) -> Block:
    """Return a row for each head that was cut alone, or one for all that were cut together, which names none."""
    rows: list[tuple[Any, ...]] = [tuple(head) for head in ablation.heads]
    if ablation.after is not None:
        rows = [(None, None, ablation.after, ablation.change, ablation.direct)]
    layer, head, after, change, direct = (list(column) for column in zip(*rows, strict=True))
    return {
        "sentence": number,
        **ablation.metadata,
        "layer": layer,
        "head": head,
        "outcome": ablation.kind,
        **{name: [None if token is None else token.text] * len(rows) for name, token in ablation.measured.items()},
        "before": [ablation.before] * len(rows),
        "after": after,
        "change": change,
        "direct": direct,
    }


def head_table(report: HeadReport) -> Table:
    """Return a table with a row for each head; undefined values are None.

    Over several sentences `METRIC_std` and `METRIC_count` of every metric follow the means. The columns of the label
    are those of the strongest one; `labels` are all of them.
    """
    heads, names = report.heads, report.names
    columns: dict[str, list[Any]] = {
        name: [getattr(head, name) for head in heads] for name in ("layer", "kind", "head")
    }
    columns |= {name: [head.metrics[name] for head in heads] for name in names}
    if report.sentences > 1:
        columns |= {f"{name}_std": [head.std[name] for head in heads] for name in names}
        columns |= {f"{name}_count": [head.counts[name] for head in heads] for name in names}
    strongest = [head.labels[0] if head.labels else None for head in heads]
    columns["label"] = ["" if label is None else label.name for label in strongest]
    for name in ("score", "baseline", "gain"):
        columns[f"label_{name}"] = [None if label is None else getattr(label, name) for label in strongest]
    columns["labels"] = [";".join(label.name for label in head.labels) for head in heads]
    types = {"layer": "int32", "head": "int32", **dict.fromkeys(("kind", "label", "labels"), "string")}
    return Table(
        {name: types.get(name, "int64" if name.endswith("_count") else "float64") for name in columns}, iter([columns])
    )


def term_table(composition: Composition) -> Table:
    """Return a row for each term of a score; a writer that is of no layer, or no head, has none."""
    types = {
        "side": "string", "writer": "string", "layer": "int32", "head": "int32", "value": "float64",
        "margin": "float64",
    }  # fmt: skip
    return Table(types, iter([{name: [getattr(term, name) for term in composition.terms] for name in types}]))


def pair_table(report: PairReport) -> Table:
    """Return a row for each head, how it does on pairs."""
    from attncli.analysis.pairs import NUMBERS

    types = {"layer": "int32", "kind": "string", "head": "int32", **dict.fromkeys(NUMBERS, "float64")}
    columns = {name: [getattr(head, name) for head in report.heads] for name in types}
    return Table(types, iter([columns]))


def call_table(calls: Calls) -> Table:
    """Return a row for each module at each place of a program; findings are their codes, with commas."""
    rows = [
        (
            str(track.place), track.place.function, track.place.module, track.api, track.calls,
            *map(str, track.sizes[1:]), track.dtype, track.mask,
            ",".join(dict.fromkeys(one.finding.code for one in track.all_findings)),
        )
        for track in calls.tracks
    ]  # fmt: skip
    columns = {name: [row[index] for row in rows] for index, name in enumerate(CALLS)}
    return Table(dict.fromkeys(CALLS, "string"), iter([columns]))


def is_shared(column: Any) -> bool:
    """Return whether a column is one value that all rows share."""
    return column is None or isinstance(column, str | int)


def row_count(block: Block) -> int:
    """Return how many rows a block has."""
    column = next(column for column in block.values() if not is_shared(column))
    return len(column.places if isinstance(column, IndexedColumn) else column)
