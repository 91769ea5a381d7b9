"""Reads a column of CSV, TSV or Parquet as sentences."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import IO, TYPE_CHECKING, Any

from attncli.corpus.files import SentenceFile
from attncli.corpus.readers.jsonl import conversation_of, no_such_column
from attncli.corpus.readers.text import MAX_BYTES, MAX_EMPTY, decode, read_lines
from attncli.engines.source import CorpusItem
from attncli.errors import Failure, InputError, require
from attncli.text import plural, visible

if TYPE_CHECKING:
    from pyarrow import Array, DataType, RecordBatch
    from pyarrow.parquet import ParquetFile

_ROWS = 1024  # of a Parquet file that are read at a time
_BUFFER = 2**20  # bytes of each of its columns
_MAX_PAGE = 2**28  # bytes that a page of it may unpack to; DuckDB writes some of 2**27
_MAX_BATCH = 2**26  # bytes of the rows that are read at a time, each of which may be as large as a page


def read_csv(stream: IO[bytes], name: str, delimiter: str, column: str) -> Iterator[CorpusItem]:
    """Yield the text of each row of CSV or TSV after the header; the first row has the number 1.

    Quotes are doubled in quotes and may have line ends between them, as spreadsheets, pandas and DuckDB write them.
    Lines without anything are no rows. After a row that cannot be read, the next line is gone on with.

    Raises:
        InputError: it is no text, or has no such column.
    """
    csv.field_size_limit(MAX_BYTES)  # of the whole process, and too small for a book
    # Bytes that are no UTF-8 harm the columns alone in which they are.
    lines = (line.decode("utf-8", "surrogateescape") for _, line in read_lines(stream, name))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header = _next_row(reader)
    if isinstance(header, Failure):
        raise InputError(f"{name}: its header cannot be read: {header.reason}")
    place, number = _column_index(header, name, column) if header else 0, 0
    while (row := _next_row(reader)) is not None:
        number += 1
        if isinstance(row, Failure):
            yield CorpusItem(number, row)
        elif header is not None and len(row) != len(header):
            yield CorpusItem(number, Failure(f"it has {plural(len(row), 'column')}, and the header {len(header)}"))
        else:
            yield CorpusItem(number, decode(row[place].encode("utf-8", "surrogateescape"), name))


def _next_row(reader: Iterator[list[str]]) -> list[str] | Failure | None:
    """Return the next row that is not empty, or why it cannot be read; None at the end."""
    try:
        return next(filter(None, reader), None)
    except csv.Error as error:
        return Failure(f"not a row: {error}; double a quote within quotes")


def _column_index(header: Sequence[str], name: str, column: str) -> int:
    """Return the index of the text column; InputError unless exactly one has that name."""
    if column not in header:
        raise InputError(f"{name} has no {no_such_column(column, header)}")
    if header.count(column) > 1:
        raise InputError(f"{name} has {header.count(column)} columns '{visible(column)}'; expected one")
    return header.index(column)


# --- Parquet -----------------------------------------------------------------------------------------------


def read_parquet(file: SentenceFile, column: str, chat: bool = False) -> Iterator[CorpusItem]:
    """Yield the text of each row of a Parquet file in bounded memory, or with `chat` its messages; see `read_csv`."""
    name = visible(file.name)
    with _open_parquet(file) as (source, table):
        schema = table.schema_arrow
        kind = schema.field(_column_index(schema.names, name, column)).type
        if not (_is_text(kind) or (chat and _is_list(kind))):
            raise InputError(f"column '{visible(column)}' of {name} is {visible(str(kind))}; expected text")
        null = Failure(f"its '{visible(column)}' is not text")
        texts = chain.from_iterable(_values(batch.column(0), name) for batch in _batches(source, table, name, column))
        empty = 0
        for number, text in enumerate(texts, start=1):
            empty = empty + 1 if text == "" else 0
            if empty > MAX_EMPTY:
                raise InputError(f"{name} has no text in the {empty:,} rows up to row {number:,}; remove them")
            yield CorpusItem(number, null if text is None else text)


def _batches(source: Any, table: ParquetFile, name: str, column: str) -> Iterator[RecordBatch]:
    """Yield rows of a column, as many at a time as fit into memory; InputError for a page that would not."""
    from attncli.corpus.readers.parquet_pages import page_sizes

    for group in range(table.num_row_groups):
        row_group = table.metadata.row_group(group)
        chunks = map(row_group.column, range(row_group.num_columns))
        own = [chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] == column.partition(".")[0]]
        largest = max(chain.from_iterable(page_sizes(source, chunk) for chunk in own), default=0)
        if largest > _MAX_PAGE:
            size, most = largest >> 20, _MAX_PAGE >> 20
            raise InputError(
                f"{name} has a page that unpacks to {size:,} MiB; write it with pages of {most} MiB or less"
            )
        rows = min(_ROWS, max(1, _MAX_BATCH // max(1, largest)))
        yield from table.iter_batches(rows, [group], [column], False)


def count_rows(file: SentenceFile) -> int:
    """Return the number of rows in a Parquet file's footer."""
    with _open_parquet(file) as (_, table):
        return int(table.metadata.num_rows)


@contextmanager
def _open_parquet(file: SentenceFile) -> Iterator[tuple[Any, ParquetFile]]:
    require("a Parquet file", "pyarrow")
    from pyarrow.parquet import ParquetFile

    with file.open_raw() as source, ParquetFile(source, pre_buffer=False, buffer_size=_BUFFER) as table:
        yield source, table


def _is_text(kind: DataType) -> bool:
    """Return whether a column holds texts; older writers do not say which bytes are text."""
    return re.fullmatch(r"(dictionary<values=)?(large_)?(string|binary)(_view)?(,.*)?", str(kind)) is not None


def _is_list(kind: DataType) -> bool:
    return re.match("(large_)?list<", str(kind)) is not None


def _values(array: Array, name: str) -> list[Any]:
    """Return the values of a column of texts or messages, with failures for text that is not UTF-8."""
    import pyarrow

    if _is_list(array.type):
        return [None if value is None else conversation_of(value) for value in array.to_pylist()]
    if pyarrow.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    texts = array.cast(pyarrow.large_binary() if str(array.type).startswith("large") else pyarrow.binary())
    return [None if value is None else decode(value, name) for value in texts.to_pylist()]
