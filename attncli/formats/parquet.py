"""Tidy rows with types, for corpora: the columns of TSV in a Parquet file, written in row groups as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from attncli.errors import Failure, Metadata, UsageError
from attncli.files import atomic_write
from attncli.formats.columns import head_columns, head_types
from attncli.formats.metric_rows import METRIC_TYPES, metric_rows
from attncli.formats.rows import COLUMNS
from attncli.trace.top_keys import top_keys
from attncli.trace.trace import Trace
from attncli.trace.view import Cells, View

if TYPE_CHECKING:
    from attncli.analysis.heads import HeadReport
    from attncli.trace.layer import HeadTrace, LayerTrace

_ROWS = 2**18  # of a row group, at the most about twice as many
_BYTES = 2**26  # likewise, where rows are long
CELLS = dict(
    zip(
        COLUMNS,
        ("int64", "int32", "string", "int32", "int32", "string", "int32", "string", "float32", "bool_", "float32"),
        strict=True,
    )
)


def row_types(view: View) -> dict[str, str]:
    """Return the columns of a file without rows."""
    return METRIC_TYPES if view.is_of_metrics else CELLS


def write_head_table(report: HeadReport, path: Path) -> None:
    """Write a row a head; see `head_columns`."""
    import pyarrow

    columns = head_columns(report)
    schema = typed(head_types(columns))
    write_tables([pyarrow.table(columns, schema)], lambda: schema, path)


def check_parquet(output: Path | None) -> None:
    """Make sure that there is a file to write, and what writes it.

    Raises:
        UsageError: one of the two is missing.
    """
    if output is None:
        raise UsageError("--format parquet writes a file; say where with --output attention.parquet")
    if find_spec("pyarrow") is None:
        raise UsageError("parquet needs the pyarrow library: pip install 'attncli[parquet]'")


def write_parquet(answers: Iterable[tuple[int, Iterable[Any] | Failure]], types: Mapping[str, str], path: Path) -> None:
    """Write the rows of all sentences but those that failed, given their tables.

    Args:
        answers: the tables of each sentence, or why it has none, with its number.
        types: of the columns of a file without rows.
        path: of the file.

    Raises:
        InputError: the file cannot be written.
    """
    kept: Metadata = {}

    def good() -> Iterator[Any]:
        nonlocal kept
        for _, tables in answers:
            if isinstance(tables, Failure):
                kept = tables.kept
            else:
                yield from tables

    write_tables(good(), lambda: with_kept(typed(types).empty_table(), kept).schema, path)


def typed(types: Mapping[str, str]) -> Any:
    """Return the schema of columns by the names of their types."""
    import pyarrow

    return pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, kind in types.items()])


def with_kept(table: Any, kept: Metadata) -> Any:
    """Return a table with what a file says of its sentence besides, in columns behind `sentence`."""
    import pyarrow

    for place, (name, value) in enumerate(kept.items(), start=1):
        table = table.add_column(place, name, pyarrow.repeat(pyarrow.scalar(value), len(table)))
    return table


def write_tables(tables: Iterable[Any], empty: Callable[[], Any], path: Path) -> None:
    """Write tables of one schema to a file, in row groups as they come.

    Args:
        tables: of pyarrow.
        empty: gives the schema of a file without any row.
        path: of the file.

    Raises:
        InputError: the file cannot be written.
    """
    import pyarrow

    # Opened here: of paths, the library takes those in UTF-8 alone.
    with atomic_write(path) as aside, open(aside, "wb") as sink, ExitStack() as stack:
        writer: Any = None
        for group in _row_groups(tables):
            whole = pyarrow.concat_tables(group)
            writer = writer or stack.enter_context(_writer(sink, whole.schema))
            writer.write_table(whole, row_group_size=2 * _ROWS)
        if writer is None:
            stack.enter_context(_writer(sink, empty()))


def _row_groups(tables: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield tables that are together large enough for a row group."""
    waiting: list[Any] = []
    rows = size = 0
    for table in tables:
        waiting.append(table)
        rows, size = rows + len(table), size + table.nbytes
        if rows >= _ROWS or size >= _BYTES:
            yield waiting
            waiting, rows, size = [], 0, 0
    if waiting:
        yield waiting


def _writer(sink: IO[bytes], schema: Any) -> Any:
    """Return what writes rows of a schema; numbers that are all different have their bytes sorted by place."""
    from pyarrow import types
    from pyarrow.parquet import ParquetWriter

    floats = [field.name for field in schema if types.is_floating(field.type)]
    few = [name for name in schema.names if name not in floats]
    split = dict.fromkeys(floats, "BYTE_STREAM_SPLIT")
    return ParquetWriter(
        sink, schema, compression="zstd", use_dictionary=few, column_encoding=split, write_page_checksum=True
    )


def tables(number: int, trace: Trace, view: View) -> Iterator[Any]:
    """Yield the cells of a block of query rows at a time, or the metrics of all heads."""
    import pyarrow

    if view.is_of_metrics:
        schema, rows = typed(METRIC_TYPES), metric_rows(number, trace, None)
        arrays = [
            pyarrow.array(values, each.type) for values, each in zip(zip(*rows, strict=True), schema, strict=True)
        ]
        yield with_kept(pyarrow.table(arrays, schema), trace.kept)
        return
    for layer in trace.layers:
        cells = view.cells(trace, layer)
        for index in layer.heads:
            for block in layer.head(index, cells.rows).blocks():
                types = _types(layer, index)
                columns = _columns(number, layer, index, block, cells, view)
                table = pyarrow.table(dict(zip(types, columns, strict=True)), schema=typed(types))
                yield with_kept(table, trace.kept)


def _types(layer: LayerTrace, head: int) -> dict[str, str]:
    """Return the columns' types: what is derived from several layers or heads has a text where these have a number."""
    labels = {"layer": layer.label, "head": layer.head_label(head)}
    types = CELLS | {name: "string" for name, label in labels.items() if isinstance(label, str)}
    weight = types.pop("weight")
    return types | {"norm" if layer.measure == "norms" else "weight": weight}


def _columns(number: int, layer: LayerTrace, index: int, block: HeadTrace, cells: Cells, view: View) -> list[Any]:
    """Return the columns of a block, in the order of `COLUMNS`: the cells that are shown, query by query."""
    import pyarrow

    rows, places = _places(block, cells, view)
    queries, keys = np.array(block.queries)[rows], np.array(cells.columns)[places]
    count = len(rows)

    def tokens(side: Iterable[Any], indices: np.ndarray[Any, Any]) -> Any:
        return pyarrow.array([token.text for token in side], pyarrow.string()).take(pyarrow.array(indices))

    def numbers(values: Any) -> Any:
        return values[:, cells.of_columns][rows, places]

    return [
        np.full(count, number),
        np.full(count, layer.label),
        np.full(count, layer.kind),
        np.full(count, layer.head_label(index)),
        queries,
        tokens(cells.row_tokens, queries),
        keys,
        tokens(cells.column_tokens, keys),
        # Numbers that are derived have none.
        pyarrow.nulls(count) if "scores" in layer.missing else numbers(block.scores),
        numbers(block.mask),
        numbers(block.weights),
    ]


def _places(block: HeadTrace, cells: Cells, view: View) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the row and the column of each cell that is shown."""
    if view.top_keys is None:
        places = [np.arange(len(cells.columns))] * len(block.queries)
    else:
        places = [found for found, _ in top_keys(block, cells.of_columns, view.top_keys)]
    rows = np.repeat(np.arange(len(places)), [len(found) for found in places])
    return rows, np.concatenate(places)
