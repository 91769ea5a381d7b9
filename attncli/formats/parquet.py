"""Tidy rows with types, for corpora: the columns of TSV in a Parquet file, written in row groups as they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors import AttnError, Failure, UsageError
from attncli.files import written_aside
from attncli.formats.rows import COLUMNS
from attncli.trace.ranking import top_keys
from attncli.trace.trace import Trace
from attncli.trace.view import Cells, View

if TYPE_CHECKING:
    from attncli.trace.layer import HeadTrace, LayerTrace

_ROWS = 2**18  # of a row group
_TYPES = dict(
    zip(
        COLUMNS,
        ("int64", "int32", "string", "int32", "int32", "string", "int32", "string", "float32", "bool_", "float32"),
        strict=True,
    )
)


def check_parquet(output: Path | None) -> None:
    """Make sure that there is a file to write, and what writes it.

    Raises:
        UsageError: one of the two is missing.
    """
    if output is None:
        raise UsageError("--format parquet writes a file; say where with --output attention.parquet")
    if find_spec("pyarrow") is None:
        raise UsageError("parquet needs the pyarrow library: pip install 'attncli[parquet]'")


def write_parquet(answers: Iterable[tuple[int, Trace | Failure]], view: View, path: Path) -> None:
    """Write a row a cell, of all sentences but those that failed.

    Raises:
        InputError: the file cannot be written.
    """
    write_tables(_tables(answers, view), typed(_TYPES), path)


def typed(types: Mapping[str, str]) -> Any:
    """Return the schema of columns by the names of their types."""
    import pyarrow

    return pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, kind in types.items()])


def write_tables(tables: Iterable[Any], empty: Any, path: Path) -> None:
    """Write tables of one schema one after the other, in row groups as they come.

    Args:
        tables: the rows.
        empty: the schema of a file without any.
        path: of the file.

    Raises:
        InputError: the file cannot be written.
    """
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    # Opened here: of paths, the library takes those in UTF-8 alone.
    with written_aside(path, ".part") as aside, open(aside, "wb") as sink, ExitStack() as stack:
        file = None
        for group in _groups(tables):
            file = file or stack.enter_context(ParquetWriter(sink, group[0].schema, compression="zstd"))
            file.write_table(pyarrow.concat_tables(group), row_group_size=2 * _ROWS)
        if file is None:
            stack.enter_context(ParquetWriter(sink, empty))


def _groups(tables: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield tables that are a row group together; the last one may be smaller."""
    waiting: list[Any] = []
    rows = 0
    failure = None
    try:
        for table in tables:
            waiting.append(table)
            rows += len(table)
            if rows >= _ROWS:
                yield waiting
                waiting, rows = [], 0
    except AttnError as error:  # after the rows that there are
        failure = error
    if waiting:
        yield waiting
    if failure is not None:
        raise failure


def _tables(answers: Iterable[tuple[int, Trace | Failure]], view: View) -> Iterator[Any]:
    """Yield the cells of a block of query rows at a time."""
    import pyarrow

    for number, answer in answers:
        if isinstance(answer, Failure):
            continue
        for layer in answer.layers:
            cells = view.cells(answer, layer)
            for index in layer.heads:
                for block in layer.head(index, cells.rows).blocks():
                    types = _types(layer, index)
                    columns = _columns(number, layer, index, block, cells, view)
                    yield pyarrow.table(dict(zip(types, columns, strict=True)), schema=typed(types))


def _types(layer: LayerTrace, head: int) -> dict[str, str]:
    """Return the columns' types: what is derived from several layers or heads has a text where these have a number."""
    labels = {"layer": layer.label, "head": layer.head_label(head)}
    types = _TYPES | {name: "string" for name, label in labels.items() if isinstance(label, str)}
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
    if view.heaviest is None:
        places = [np.arange(len(cells.columns))] * len(block.queries)
    else:
        places = [found for found, _ in top_keys(block, cells.of_columns, view.heaviest)]
    rows = np.repeat(np.arange(len(places)), [len(found) for found in places])
    return rows, np.concatenate(places)
