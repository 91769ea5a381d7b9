"""Tables as sentences: a column of CSV, TSV or Parquet, and other columns that are kept."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from attncli.corpus.lines import MOST_BYTES, decoded, lines_in
from attncli.corpus.places import File, readable
from attncli.corpus.records import conversation_of, no_such
from attncli.engines.source import CorpusItem
from attncli.errors import NO_METADATA, Failure, InputError, require
from attncli.text import plural, visible

if TYPE_CHECKING:
    from pyarrow import Array, DataType, RecordBatch, Schema
    from pyarrow.parquet import ParquetFile

_ROWS = 1024  # of a Parquet file that are read at a time
_AHEAD = 2**20  # bytes of each of its columns


def rows_in(stream: IO[bytes], name: str, delimiter: str, column: str, keep: Sequence[str]) -> Iterator[CorpusItem]:
    """Yield the text of each row of CSV or TSV after the header; the first row has the number 1.

    Quotes are doubled in quotes and may have line ends between them, as spreadsheets, pandas and DuckDB write them.
    What is kept is text. Lines without anything are no rows.

    Args:
        stream: what is read.
        name: what it is called, harmless.
        delimiter: what stands between two columns.
        column: that holds the text.
        keep: the columns that are kept.

    Raises:
        InputError: it is no text, or has no such column.
    """
    rows = _rows(stream, name, delimiter)
    header = _header(rows, name)
    if not header:
        return
    place, *others = _places(header, name, column, keep)
    for number, row in enumerate(rows, start=1):
        if isinstance(row, Failure):
            yield CorpusItem(number, row)
        elif len(row) != len(header):
            yield CorpusItem(number, Failure(f"it has {plural(len(row), 'column')}, and the header {len(header)}"))
        else:
            kept = {one: _sound(row[other], name) for one, other in zip(keep, others, strict=True)}
            yield _keeping(number, _sound(row[place], name), kept)


def header_of(stream: IO[bytes], name: str, delimiter: str) -> list[str]:
    """Return the names of the columns; see `rows_in`."""
    return _header(_rows(stream, name, delimiter), name)


def _header(rows: Iterator[list[str] | Failure], name: str) -> list[str]:
    header = next(rows, [])
    if isinstance(header, Failure):
        raise InputError(f"{name}: its header cannot be read: {header.reason}")
    return header


def _rows(stream: IO[bytes], name: str, delimiter: str) -> Iterator[list[str] | Failure]:
    """Yield the rows that are not empty; after one that cannot be read, go on with the next line."""
    csv.field_size_limit(MOST_BYTES)  # of the whole process, and too small for a book
    lines = _Lines(lines_in(stream, name))
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


class _Lines:
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
        if self.size > MOST_BYTES:
            raise csv.Error(f"it goes on for more than {MOST_BYTES >> 20} MiB, as where a quote is not closed")
        return line.decode("utf-8", "surrogateescape")


def _places(header: Sequence[str], name: str, column: str, keep: Sequence[str]) -> list[int]:
    """Return which columns hold the text, and what is kept.

    Raises:
        InputError: there is no such column, or two.
    """
    for wanted, option in ((column, "--column"), *((one, None) for one in keep)):
        if wanted not in header:
            raise InputError(f"{name} has no column {no_such(wanted, option, header)}")
        if header.count(wanted) > 1:
            raise InputError(f"{name} has {header.count(wanted)} columns '{visible(wanted)}'; expected one")
    return [header.index(wanted) for wanted in (column, *keep)]


def _sound(text: str, name: str) -> str | Failure:
    """Return a text that was decoded whatever its bytes, or why they spell none."""
    return text if text.isascii() else decoded(text.encode("utf-8", "surrogateescape"), name)


def _keeping(number: int, text: str | Failure, kept: dict[str, Any]) -> CorpusItem:
    """Return a sentence with what is kept, unless that is bad."""
    bad = next((one for one in kept.values() if isinstance(one, Failure)), None)
    return CorpusItem(number, text, kept or NO_METADATA) if bad is None else CorpusItem(number, bad)


# --- Parquet -----------------------------------------------------------------------------------------------


def parquet_rows(file: File, column: str, keep: Sequence[str], chat: bool = False) -> Iterator[CorpusItem]:
    """Yield the text of each row of a Parquet file in bounded memory, or with `chat` its messages; see `rows_in`.

    Of a row group that cannot be read, one sentence says so, and the next one is gone on with.
    """
    name = visible(file.name)
    with _table(file) as table:
        _places(table.schema_arrow.names, name, column, keep)
        _check_types(table.schema_arrow, name, column, keep, chat)
        number = 0
        for group in range(table.num_row_groups):
            before, rows = number, table.metadata.row_group(group).num_rows
            try:
                with readable(file):
                    for batch in table.iter_batches(_ROWS, [group], [column, *keep], use_threads=False):
                        yield from _sentences(batch, number, name, column, keep)
                        number += len(batch)
            except InputError as error:
                if number == 0 and table.num_row_groups == 1:
                    raise
                reason = f"it and those up to {before + rows}, of row group {group}: {error}"
                yield CorpusItem(number + 1, Failure(reason))
            number = before + rows


def count_rows(file: File) -> int:
    """Return how many rows a Parquet file says it has."""
    with _table(file) as table:
        return int(table.metadata.num_rows)


def columns_of(file: File) -> list[str]:
    """Return the names of the columns of a Parquet file."""
    with _table(file) as table:
        return list(table.schema_arrow.names)


@contextmanager
def _table(file: File) -> Iterator[ParquetFile]:
    """Open a Parquet file, of which little is held in memory at a time."""
    require("a Parquet file", "pyarrow")
    from pyarrow.parquet import ParquetFile

    with file.opened_anywhere() as source, ParquetFile(source, pre_buffer=False, buffer_size=_AHEAD) as table:
        yield table


def _check_types(schema: Schema, name: str, column: str, keep: Sequence[str], chat: bool) -> None:
    """Raise InputError for columns of types that hold no text, or nothing that JSON has."""
    kind = schema.field(column).type
    if not (_is_text(kind) or (chat and _is_list(kind))):
        raise InputError(f"column '{visible(column)}' of {name} is {visible(str(kind))}; expected text")
    for one in keep:
        kind = schema.field(one).type
        if not _is_kept(kind):
            raise InputError(
                f"column '{visible(one)}' of {name} is {visible(str(kind))}; what is kept are texts, numbers, "
                "booleans, dates and times"
            )


def _is_text(kind: DataType) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    # Older writers do not say which bytes are text.
    of_bytes = (types.is_binary, types.is_large_binary, types.is_binary_view)
    return _is_string(kind) or any(is_one(kind) for is_one in of_bytes)


def _is_kept(kind: DataType) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _is_kept(kind.value_type)
    plain = (types.is_boolean, types.is_integer, types.is_floating, types.is_null)
    return _is_string(kind) or _is_time(kind) or any(is_one(kind) for is_one in plain)


def _is_string(kind: DataType) -> bool:
    from pyarrow import types

    return any(is_one(kind) for is_one in (types.is_string, types.is_large_string, types.is_string_view))


def _is_list(kind: DataType) -> bool:
    from pyarrow import types

    return any(is_one(kind) for is_one in (types.is_list, types.is_large_list))


def _is_time(kind: DataType) -> bool:
    from pyarrow import types

    return any(is_one(kind) for is_one in (types.is_date, types.is_time, types.is_timestamp))


def _sentences(batch: RecordBatch, before: int, name: str, column: str, keep: Sequence[str]) -> Iterator[CorpusItem]:
    """Yield the rows of a batch, before which there are so many."""
    texts, *others = (_values(batch.column(batch.schema.get_field_index(one)), name) for one in (column, *keep))
    null = Failure(f"its '{visible(column)}' is null; expected text")
    for number, (text, *kept) in enumerate(zip(texts, *others, strict=True), start=before + 1):
        yield _keeping(number, null if text is None else text, dict(zip(keep, kept, strict=True)))


def _values(array: Array, name: str) -> list[Any]:
    """Return what a column holds, as JSON has it: times as ISO 8601 writes them, and failures for what is no UTF-8."""
    import pyarrow
    from pyarrow import types

    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if _is_time(array.type):
        return [one and one.replace(" ", "T") for one in array.cast(pyarrow.string()).to_pylist()]
    if _is_list(array.type):
        return [None if one is None else conversation_of(one) for one in array.to_pylist()]
    if not _is_text(array.type):
        return array.to_pylist()
    wide = pyarrow.large_binary() if types.is_large_string(array.type) else pyarrow.binary()
    return [None if one is None else decoded(one, name) for one in array.cast(wide).to_pylist()]
