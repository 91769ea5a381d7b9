"""Parquet: rows with types, written in row groups as they come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from attncli.errors import Failure, UsageError, require
from attncli.files import atomic_write
from attncli.formats.columns import Table, row_count, with_metadata

if TYPE_CHECKING:
    from attncli.formats.json import Parts

_ROWS = 2**18  # of a row group, at the most about twice as many


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
    """Write the tables of sentences, without failures; a file without rows has the columns `types`."""
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    waiting: list[Any] = []
    writer: Any = None

    def write(least: int) -> None:
        nonlocal writer
        if sum(map(len, waiting)) >= least and waiting:
            writer = writer or ParquetWriter(sink, waiting[0].schema, compression="zstd")
            writer.write_table(pyarrow.concat_tables(waiting), row_group_size=2 * _ROWS)
            waiting.clear()

    try:
        for _, tables in answers:
            if isinstance(tables, Failure):
                types = with_metadata(types, tables.metadata)
                continue
            for table in tables:
                waiting.append(table)
                write(_ROWS)
        write(0)
        writer = writer or ParquetWriter(sink, schema_of(types))
    finally:
        if writer is not None:
            writer.close()


def write_table(table: Table, path: Path) -> None:
    """Write one table to a file; InputError if it cannot be written."""
    with atomic_write(path) as aside, open(aside, "wb") as sink:
        write_parquet([(1, arrow_tables(table))], table.types, sink)


def arrow_tables(table: Table) -> Iterator[Any]:
    """Yield each block of rows as a table of pyarrow."""
    import pyarrow

    schema = schema_of(table.types)
    for block in table.blocks:
        columns = ((block[each.name], each.type) for each in schema)
        count = row_count(block)
        arrays = [
            pyarrow.array(column, kind)
            if isinstance(column, np.ndarray)
            else pyarrow.repeat(pyarrow.scalar(column, kind), count)
            for column, kind in columns
        ]
        yield pyarrow.Table.from_arrays(arrays, schema=schema)


def schema_of(types: Mapping[str, str]) -> Any:
    """Return the schema of columns."""
    import pyarrow

    return pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, kind in types.items()])
