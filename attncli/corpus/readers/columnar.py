"""Reads a column of CSV, TSV or Parquet as sentences."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from attncli.corpus.readers.jsonl import conversation_of, no_such_column
from attncli.corpus.readers.text import MAX_BYTES, decode, read_lines
from attncli.corpus.remote import File, translate_file_errors
from attncli.engines.source import CorpusItem
from attncli.errors import Failure, InputError, require
from attncli.text import plural, visible

if TYPE_CHECKING:
    from pyarrow import Array, DataType
    from pyarrow.parquet import ParquetFile

_ROWS = 1024  # of a Parquet file that are read at a time
_BUFFER = 2**20  # bytes of each of its columns


def read_csv(stream: IO[bytes], name: str, delimiter: str, column: str) -> Iterator[CorpusItem]:
    """Yield the text of each row of CSV or TSV after the header; the first row has the number 1.

    Quotes are doubled in quotes and may have line ends between them, as spreadsheets, pandas and DuckDB write them.
    Lines without anything are no rows.

    Args:
        stream: what is read.
        name: what it is called, harmless.
        delimiter: what stands between two columns.
        column: that holds the text.

    Raises:
        InputError: it is no text, or has no such column.
    """
    rows = _csv_rows(stream, name, delimiter)
    header = next(rows, [])
    if isinstance(header, Failure):
        raise InputError(f"{name}: its header cannot be read: {header.reason}")
    if not header:
        return
    place = _column_index(header, name, column)
    for number, row in enumerate(rows, start=1):
        if isinstance(row, Failure):
            yield CorpusItem(number, row)
        elif len(row) != len(header):
            yield CorpusItem(number, Failure(f"it has {plural(len(row), 'column')}, and the header {len(header)}"))
        else:
            yield CorpusItem(number, decode(row[place].encode("utf-8", "surrogateescape"), name))


def _csv_rows(stream: IO[bytes], name: str, delimiter: str) -> Iterator[list[str] | Failure]:
    """Yield the rows that are not empty; after one that cannot be read, go on with the next line."""
    csv.field_size_limit(MAX_BYTES)  # of the whole process, and too small for a book
    lines = _RowLines(read_lines(stream, name))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        lines.size = lines.first = 0
        try:
            row = next(reader, None)
        except csv.Error as error:
            yield Failure(f"it is no row: {error} (from line {lines.first:,} on); a quote within quotes is doubled")
            continue
        if row is None:
            return
        if row:
            yield row


class _RowLines:
    """Lines as text, so many bytes of them that a row may have: where a quote is not closed, all others are in it.

    Attributes:
        size: of the lines of a row so far, in bytes.
        first: the number of its first line; 0 where it has none yet.
    """

    def __init__(self, lines: Iterator[tuple[int, bytes]]) -> None:
        self._lines = lines
        self.size = self.first = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        """Return the next line; bytes that are no UTF-8 harm the columns alone in which they are.

        Raises:
            csv.Error: the row is too long, which ends it.
        """
        number, line = next(self._lines)
        self.size += len(line)
        self.first = self.first or number
        if self.size > MAX_BYTES:
            raise csv.Error(f"it goes on for more than {MAX_BYTES >> 20} MiB, as where a quote is not closed")
        return line.decode("utf-8", "surrogateescape")


def _column_index(header: Sequence[str], name: str, column: str) -> int:
    """Return which column holds the text.

    Raises:
        InputError: there is no such column, or two.
    """
    if column not in header:
        raise InputError(f"{name} has no {no_such_column(column, header)}")
    if header.count(column) > 1:
        raise InputError(f"{name} has {header.count(column)} columns '{visible(column)}'; expected one")
    return header.index(column)


# --- Parquet -----------------------------------------------------------------------------------------------


def read_parquet(file: File, column: str, chat: bool = False) -> Iterator[CorpusItem]:
    """Yield the text of each row of a Parquet file in bounded memory, or with `chat` its messages; see `read_csv`.

    Of a row group that cannot be read, one sentence says so, and the next one is gone on with.
    """
    name = visible(file.name)
    with _open_parquet(file) as table:
        schema = table.schema_arrow
        kind = schema.field(_column_index(schema.names, name, column)).type
        if not (_is_text(kind) or (chat and _is_list(kind))):
            raise InputError(f"column '{visible(column)}' of {name} is {visible(str(kind))}; expected text")
        null = Failure(f"its '{visible(column)}' is null; expected text")
        number = 0
        for group in range(table.num_row_groups):
            before, rows = number, table.metadata.row_group(group).num_rows
            try:
                with translate_file_errors(file):
                    for batch in table.iter_batches(_ROWS, [group], [column], use_threads=False):
                        for text in _values(batch.column(0), name):
                            number += 1
                            yield CorpusItem(number, null if text is None else text)
            except InputError as error:
                if number == 0 and table.num_row_groups == 1:
                    raise
                reason = f"it and those up to {before + rows}, of row group {group}: {error}"
                yield CorpusItem(number + 1, Failure(reason))
            number = before + rows


def count_rows(file: File) -> int:
    """Return how many rows a Parquet file says it has."""
    with _open_parquet(file) as table:
        return int(table.metadata.num_rows)


@contextmanager
def _open_parquet(file: File) -> Iterator[ParquetFile]:
    """Open a Parquet file, of which little is held in memory at a time."""
    require("a Parquet file", "pyarrow")
    from pyarrow.parquet import ParquetFile

    with file.open_seekable() as source, ParquetFile(source, pre_buffer=False, buffer_size=_BUFFER) as table:
        yield table


def _is_text(kind: DataType) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    # Older writers do not say which bytes are text.
    texts = (types.is_string, types.is_large_string, types.is_string_view)
    return any(is_one(kind) for is_one in (*texts, types.is_binary, types.is_large_binary, types.is_binary_view))


def _is_list(kind: DataType) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind))


def _values(array: Array, name: str) -> list[Any]:
    """Return what a column of texts or messages holds, and failures for what is no UTF-8."""
    import pyarrow
    from pyarrow import types

    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if _is_list(array.type):
        return [None if one is None else conversation_of(one) for one in array.to_pylist()]
    wide = pyarrow.large_binary() if types.is_large_string(array.type) else pyarrow.binary()
    return [None if one is None else decode(one, name) for one in array.cast(wide).to_pylist()]
