"""Results as columns: rows of csv and tsv, Parquet and data frames are written from these.

A column of a block of rows is an array, of objects where it holds texts or None, or one value that all rows share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.analysis import OF_ANY_TEXT, OF_PICTURES, names_for
from attncli.errors import Metadata
from attncli.recording.call import COLUMNS
from attncli.trace.tokenization import Tokenization

if TYPE_CHECKING:
    from attncli.analysis.ablation import Ablation
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
ABLATIONS = {
    "sentence": "int64", "layer": "int32", "head": "int32", "outcome": "string", "next": "string", "against": "string",
    **dict.fromkeys(("before", "after", "change", "direct"), "float64"),
}  # fmt: skip
TRAINING = {
    "step": "int64", "place": "string", "module": "string", "layer": "int32", "head": "int32",
    **dict.fromkeys(COLUMNS, "float32"), "rank": "int32",
}  # fmt: skip

Block = dict[str, Any]


class Table(NamedTuple):
    """Columns by their types, in blocks of rows that are made as they are read."""

    types: Mapping[str, str]
    blocks: Iterator[Block]


def objects(values: Any) -> np.ndarray[Any, Any]:
    """Return a column of texts, or of numbers and None."""
    return np.array([*values, None], object)[:-1]  # else texts of one length would become an array of characters


def types_of(shown: View | str) -> dict[str, str]:
    """Return the columns of a view of traces, of `tokens` or of `cuts`, where there is no row."""
    if isinstance(shown, str):
        return TOKENS if shown == "tokens" else ABLATIONS
    return METRICS if shown.is_of_metrics else CELLS


def with_metadata(types: Mapping[str, str], metadata: Metadata) -> dict[str, str]:
    """Return columns with those of a sentence's metadata inserted after its number."""
    (first, kind), *rest = types.items()
    return {first: kind, **dict.fromkeys(metadata, "string"), **dict(rest)}


def table_of(number: int, result: Trace | Tokenization | Ablation, shown: Any) -> Table:
    """Return the columns of a sentence: of its cells, of the metrics of its heads, of its tokens, or of cuts."""
    from attncli.analysis.ablation import Ablation

    if isinstance(result, Ablation):
        types, blocks = ABLATIONS, iter([_cuts(result)])
    elif isinstance(result, Tokenization):
        types, blocks = TOKENS, iter([_tokens(result)])
    elif shown.is_of_metrics:
        types = METRICS | (dict.fromkeys(OF_PICTURES, "float32") if result.grids else {})
        blocks = iter([_metrics(result)])
    else:
        types, layer = dict(CELLS), result.layers[0]
        # A layer or head that is derived from several has a text where these have a number.
        labels = {"layer": layer.label, "head": layer.head_label(layer.heads[0])}
        types |= {name: "string" for name, label in labels.items() if isinstance(label, str)}
        if layer.measure == "norms":
            types = {"norm" if name == "weight" else name: kind for name, kind in types.items()}
        if result.grids:
            types |= {f"{role}_{name}": kind for role in ("query", "key") for name, kind in PLACES.items()}
        blocks = _cells(result, shown)
    before = {"sentence": number, **result.metadata}
    return Table(with_metadata(types, result.metadata), (before | block for block in blocks))


def _cells(trace: Trace, view: View) -> Iterator[Block]:
    """Yield the cells that are shown, a block of query rows of a head at a time."""
    for layer in trace.layers:
        cells, layouts = view.cells(trace, layer), trace.layouts(layer)
        texts = [objects(token.text for token in side) for side in (cells.row_tokens, cells.column_tokens)]
        pictured = [_places_in(layout, max(layer.num_queries, layer.num_keys)) for layout in layouts if trace.grids]
        for index in layer.heads:
            for block in layer.head(index, cells.rows).blocks():
                at = rows, columns = _places(block, cells, view)
                sides = np.array(block.queries)[rows], np.array(cells.columns)[columns]
                in_pictures = {
                    f"{role}_{name}": values[side]
                    for role, side, places in zip(("query", "key"), sides, pictured, strict=False)
                    for name, values in places.items()
                }
                yield {
                    "layer": layer.label,
                    "kind": layer.kind,
                    "head": layer.head_label(index),
                    "query": sides[0],
                    "query_token": texts[0][sides[0]],
                    "key": sides[1],
                    "key_token": texts[1][sides[1]],
                    "score": None if "scores" in layer.missing else block.scores[:, cells.of_columns][at],
                    "allowed": block.mask[:, cells.of_columns][at],
                    "norm" if layer.measure == "norms" else "weight": block.weights[:, cells.of_columns][at],
                    **in_pictures,
                }


def _places_in(layout: SideLayout, count: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return the `PLACES` of `count` positions; None outside of grids, or where the picture's size is unknown."""
    rows = np.full((len(PLACES), count), None, object)
    for grid in layout.grids:
        picture = layout.pictures[grid.image] if grid.image < len(layout.pictures) else None
        size = (picture.width, picture.height) if picture else (0, 0)
        for (row, column), position in np.ndenumerate(grid.positions):
            box = grid.cell_box(row, column, *size) if picture or grid.box else [None] * 4
            rows[:, position] = (grid.image, row, column, *box)
    return dict(zip(PLACES, rows, strict=True))


def _places(block: HeadTrace, cells: Cells, view: View) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the row and the column of each cell that is shown; of the heaviest keys, the heaviest first."""
    if view.top_keys is None:
        places = [np.arange(len(cells.columns))] * len(block.queries)
    else:
        places = [keys for keys, _ in block.top_keys(cells.of_columns, view.top_keys)]
    return np.repeat(np.arange(len(places)), [len(keys) for keys in places]), np.concatenate(places)


def _metrics(trace: Trace) -> Block:
    """Return a row a head: the metrics of the sentence alone."""
    from attncli.analysis.metrics import trace_metrics

    heads = [(layer, head) for layer in trace.layers for head in layer.heads]
    names = names_for(bool(trace.grids))
    measured = trace_metrics(trace).heads[:, : len(names)]
    return {
        "layer": objects(layer.label for layer, _ in heads),
        "kind": objects(layer.kind for layer, _ in heads),
        "head": objects(layer.head_label(head) for layer, head in heads),
        "queries": np.array([layer.num_queries for layer, _ in heads]),
        "keys": np.array([layer.num_keys for layer, _ in heads]),
        **{name: objects(map(shortest, column)) for name, column in zip(names, measured.T, strict=True)},
    }


def shortest(value: np.float32) -> float | None:
    """Return a float32 as the float of its own shortest digits; None for NaN."""
    return None if value != value else float(str(value))


def _tokens(tokenization: Tokenization) -> Block:
    tokens = list(tokenization.as_dicts())
    return {name: objects(token[name] for token in tokens) for name in TOKENS if name != "sentence"}


def _cuts(ablation: Ablation) -> Block:
    """Return a row for each head that was cut alone, or one for all that were cut together, which names none."""
    rows: list[tuple[Any, ...]] = [tuple(head) for head in ablation.heads]
    if ablation.after is not None:
        rows = [(None, None, ablation.after, ablation.change, ablation.direct)]
    layer, head, after, change, direct = map(objects, zip(*rows, strict=True))
    return {
        "layer": layer,
        "head": head,
        "outcome": ablation.kind,
        **{name: None if token is None else token.text for name, token in ablation.measured.items()},
        "before": ablation.before,
        "after": after,
        "change": change,
        "direct": direct,
    }


def _table(types: Mapping[str, str], columns: Mapping[str, Any]) -> Table:
    return Table(types, iter([{name: objects(column) for name, column in columns.items()}]))


def head_table(report: HeadReport) -> Table:
    """Return a table with a row for each head; undefined values are None.

    Over several sentences `METRIC_std` and `METRIC_count` of every metric follow the means. The columns of the label
    are those of the strongest one; `labels` are all of them.
    """
    heads, names = report.heads, report.names
    columns: dict[str, Any] = {name: [getattr(head, name) for head in heads] for name in ("layer", "kind", "head")}
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
    kinds = {name: types.get(name, "int64" if name.endswith("_count") else "float64") for name in columns}
    return _table(kinds, columns)


def checkpoint_table(reports: Mapping[int, tuple[str, HeadReport]]) -> Table:
    """Return a row for each head of each checkpoint: its step, its name, and what `head_table` has."""
    of_step = [({"step": step, "checkpoint": name}, head_table(report)) for step, (name, report) in reports.items()]
    types = {"step": "int64", "checkpoint": "string", **of_step[0][1].types}
    return Table(types, (step | block for step, table in of_step for block in table.blocks))


def term_table(composition: Composition) -> Table:
    """Return a row for each term of a score; a writer that is of no layer, or no head, has none."""
    types = {
        "side": "string", "writer": "string", "layer": "int32", "head": "int32", "value": "float64",
        "margin": "float64",
    }  # fmt: skip
    return _table(types, {name: [getattr(term, name) for term in composition.terms] for name in types})


def pair_table(report: PairReport) -> Table:
    """Return a row for each head, how it does on pairs."""
    from attncli.analysis.pairs import NUMBERS

    types = {"layer": "int32", "kind": "string", "head": "int32", **dict.fromkeys(NUMBERS, "float64")}
    return _table(types, {name: [getattr(head, name) for head in report.heads] for name in types})


def row_count(block: Block) -> int:
    """Return how many rows a block has."""
    return next(len(column) for column in block.values() if isinstance(column, np.ndarray))
