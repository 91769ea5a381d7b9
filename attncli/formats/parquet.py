"""Tidy rows with types, for corpora: the columns of TSV in a Parquet file, written in row groups as they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from attncli.errors import AttnError, Failure, InputError, Metadata, UsageError
from attncli.files import atomic_write
from attncli.formats.rows import COLUMNS
from attncli.text import visible
from attncli.trace.top_keys import top_keys
from attncli.trace.trace import Trace
from attncli.trace.view import Cells, View

if TYPE_CHECKING:
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
    good = (tables for _, tables in answers if not isinstance(tables, Failure))
    write_tables(chain.from_iterable(good), typed(types), path)


def typed(types: Mapping[str, str]) -> Any:
    """Return the schema of columns by the names of their types."""
    import pyarrow

    return pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, kind in types.items()])


def with_kept(table: Any, kept: Metadata) -> Any:
    """Return a table with what a file says of its sentence besides, in columns behind `sentence`.

    Raises:
        UsageError: the table has a column of such a name.
    """
    import pyarrow

    for place, (name, value) in enumerate(kept.items(), start=1):
        if name in table.schema.names:
            raise UsageError(
                f"--keep {visible(name)}: the rows have a column {visible(name)} of their own; --format jsonl has both"
            )
        table = table.add_column(place, name, pyarrow.repeat(pyarrow.scalar(_storable(value)), len(table)))
    return table


def _storable(value: str | int | float | bool | None) -> str | int | float | bool | None:
    """Return a value as a column holds it: halves of characters as escapes, a number of more than 64 bits as a text."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return str(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


def write_tables(tables: Iterable[Any], empty: Any, path: Path) -> None:
    """Write tables to a file, in row groups as they come; see `Rows`.

    Raises:
        InputError: the file cannot be written.
    """
    # Opened here: of paths, the library takes those in UTF-8 alone.
    with atomic_write(path, ".part") as aside, open(aside, "wb") as sink, Rows(sink, empty) as rows:
        for table in tables:
            rows.add(table)


class Rows(AbstractContextManager["Rows"]):
    """A Parquet file that tables of the same columns are written to one after the other, in row groups as they come.

    What a file says of its sentences may differ in type: whole numbers become floats beside floats, and anything a text
    beside texts, as the first row group has them. An `AttnError` ends the file after the rows that there are.

    Args:
        sink: what is written to.
        empty: the schema of a file without any row.

    Attributes:
        count: how many rows there are.
        notes: what the file says of itself; it may be said as long as the file is open.
    """

    def __init__(self, sink: IO[bytes], empty: Any) -> None:
        self.count = 0
        self.notes: dict[str, str] = {}
        self._sink, self._schema = sink, empty
        self._file: Any = None
        self._waiting: list[Any] = []
        self._waiting_rows = self._waiting_bytes = 0

    def add(self, table: Any) -> None:
        """Write rows, with those that come next.

        Raises:
            InputError: what a file says of a sentence is of another type than what it says of those before it.
        """
        self._waiting.append(table)
        self._waiting_rows += len(table)
        self._waiting_bytes += table.nbytes
        if self._waiting_rows >= _ROWS or self._waiting_bytes >= _BYTES:
            self._write()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write what is waiting, and end the file; one without rows is written where nothing went wrong."""
        try:
            if self._waiting and (kind is None or issubclass(kind, AttnError)):
                self._write()
            elif kind is None and self._file is None:
                self._file = _writer(self._sink, self._schema)
        finally:
            if self._file is not None:
                self._file.add_key_value_metadata(self.notes)
                self._file.close()

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        whole = _joined(waiting, None if self._file is None else self._schema)
        if self._file is None:
            self._file, self._schema = _writer(self._sink, whole.schema), whole.schema
        self._file.write_table(whole, row_group_size=2 * _ROWS)
        self.count += len(whole)
        self._waiting_rows = self._waiting_bytes = 0


def _writer(sink: IO[bytes], schema: Any) -> Any:
    """Return what writes rows of a schema; numbers that are all different have their bytes sorted by place."""
    from pyarrow import types
    from pyarrow.parquet import ParquetWriter

    few, split = [], {}
    for field in schema:
        is_list = types.is_list(field.type)
        kind = field.type.value_type if is_list else field.type
        place = f"{field.name}.list.element" if is_list else field.name
        # DuckDB reads no float16 in this encoding, and lists of tokens repeat whole, which zstd sees if they are plain.
        if types.is_float32(kind) or types.is_float64(kind) or (is_list and types.is_integer(kind)):
            split[place] = "BYTE_STREAM_SPLIT"
        elif not (is_list and types.is_string(kind)):
            few.append(place)
    return ParquetWriter(
        sink, schema, compression="zstd", use_dictionary=few, column_encoding=split, write_page_checksum=True
    )


def _joined(group: list[Any], schema: Any) -> Any:
    """Return tables as one, of the types of a schema; where there is none yet, of types that hold all of them."""
    import pyarrow

    if schema is None:
        kinds: dict[str, list[Any]] = {}
        for known in dict.fromkeys(table.schema for table in group):
            for field in known:
                kinds.setdefault(field.name, []).append(field.type)
        schema = pyarrow.schema([(name, _common(found)) for name, found in kinds.items()])
    try:
        return pyarrow.concat_tables([table if table.schema == schema else table.cast(schema) for table in group])
    except pyarrow.ArrowInvalid as error:
        raise InputError(
            f"sentences {group[0]['sentence'][0]} to {group[-1]['sentence'][-1]}: what is kept of them is of another "
            f"type than of those before them: {visible(str(error))}"
        ) from None


def _common(kinds: list[Any]) -> Any:
    """Return the type that holds the values of some."""
    from pyarrow import float64, null, string, types

    distinct = {kind for kind in kinds if kind != null()}
    if len(distinct) == 1:
        return distinct.pop()
    is_number = bool(distinct) and all(types.is_integer(kind) or types.is_floating(kind) for kind in distinct)
    return float64() if is_number else string()


def tables(number: int, trace: Trace, view: View) -> Iterator[Any]:
    """Yield the cells of a block of query rows at a time."""
    import pyarrow

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
