"""Parquet: rows with types, written in row groups as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from attncli.errors import Failure, Metadata, UsageError, require
from attncli.files import atomic_write
from attncli.formats.columns import IndexedColumn, Table, is_shared, row_count, with_metadata

if TYPE_CHECKING:
    from attncli.formats.json_stream import Parts

_ROWS = 2**18  # of a row group, at the most about twice as many
_BYTES = 2**26  # likewise, where rows are long


def check_parquet(output: Path | None) -> Path:
    """Return the file to write, and check that there is one and that pyarrow is installed.

    Raises:
        UsageError: there is no file.
        LoadError: pyarrow is not installed.
    """
    if output is None:
        raise UsageError("--format parquet writes a file; give --output attention.parquet")
    require("parquet", "pyarrow")
    return output


def write_parquet(answers: Parts, types: Mapping[str, str], sink: IO[bytes]) -> None:
    """Write the rows of all sentences but those that failed, given their tables."""
    metadata: Metadata = {}

    def good() -> Iterator[Any]:
        nonlocal metadata
        for _, tables in answers:
            if isinstance(tables, Failure):
                metadata = tables.metadata
            else:
                yield from tables

    _write(good(), lambda: _schema(with_metadata(types, metadata)), sink)


def write_table(table: Table, path: Path) -> None:
    """Write one table to a file; InputError if it cannot be written."""
    with atomic_write(path) as aside, open(aside, "wb") as sink:
        _write(arrow_tables(table), lambda: _schema(table.types), sink)


def arrow_tables(table: Table) -> Iterator[Any]:
    """Yield each block of rows as a table of pyarrow."""
    import pyarrow

    schema = _schema(table.types)
    for block in table.blocks:
        count = row_count(block)
        arrays = [_array(block[each.name], each.type, count) for each in schema]
        yield pyarrow.Table.from_arrays(arrays, schema=schema)


def _array(column: Any, kind: Any, count: int) -> Any:
    import pyarrow

    if is_shared(column):
        return pyarrow.repeat(pyarrow.scalar(column, kind), count)
    if isinstance(column, IndexedColumn):
        return pyarrow.array(column.values, kind).take(pyarrow.array(column.places))
    return pyarrow.array(column, kind)


def _schema(types: Mapping[str, str]) -> Any:
    import pyarrow

    return pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, kind in types.items()])


def _write(tables: Iterable[Any], empty: Callable[[], Any], sink: IO[bytes]) -> None:
    """Write tables to a file, in row groups as they come; a file without rows has the schema `empty`."""
    import pyarrow

    with ExitStack() as stack:
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
    """Return a writer of rows of a schema; numbers that are all different have their bytes split into streams."""
    from pyarrow import types
    from pyarrow.parquet import ParquetWriter

    floats = [field.name for field in schema if types.is_floating(field.type)]
    few = [name for name in schema.names if name not in floats]
    split = dict.fromkeys(floats, "BYTE_STREAM_SPLIT")
    return ParquetWriter(
        sink, schema, compression="zstd", use_dictionary=few, column_encoding=split, write_page_checksum=True
    )
