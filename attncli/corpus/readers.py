"""Reads the sentences of a file: lines of text, a field of JSON Lines, a column of CSV, TSV or Parquet.

Each reader yields the texts with their numbers, and a failure for one that cannot be read; InputError if none can.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from attncli.engines.source import CorpusItem
from attncli.errors import Failure, InputError, require
from attncli.text import did_you_mean, plural, visible

if TYPE_CHECKING:
    from pyarrow import Array
    from pyarrow.parquet import ParquetFile

    from attncli.corpus.files import SentenceFile

MAX_BYTES = 2**24  # of a line; no model reads a text that is nearly as long
_BOM = b"\xef\xbb\xbf"
# Beginnings of files without text, which no sentence has: packed, archives, documents, pictures, UTF-16.
_MARKS = (
    b"\x1f\x8b", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"BZh9", b"PK\x03\x04", b"%PDF-", b"\x89PNG", b"\xff\xd8\xff",
    b"\xff\xfe", b"\xfe\xff",
)  # fmt: skip
_ROWS = 1024  # of a Parquet file that are read at a time
_BUFFER = 2**20  # bytes of each of its columns
_MAX_UNPACKED, _MOST_EXPANSION = 2**28, 100  # bytes of a column in a row group, where they are packed that well
_MAX_BATCH = 2**26  # bytes of the rows that are read at a time


# --- text ------------------------------------------------------------------------------------------------


def read_text(stream: IO[bytes], name: str, whole: bool = False, chat: bool = False) -> Iterator[CorpusItem]:
    """Yield the lines of a stream, or all of it as one text; with `chat` each is a list of messages in JSON.

    `name` has to be safe to print.
    """
    for number, line in _lines(stream, name, whole):
        text = decode(line if whole else line.rstrip(b"\r\n"), name)
        is_list = chat and isinstance(text, str) and text.strip()
        yield CorpusItem(number, _conversation(text, is_parsed=False) if is_list else text)


def decode(content: bytes, name: str) -> str | Failure:
    """Return the text that bytes spell, or why they spell none."""
    if len(content) > MAX_BYTES:
        return Failure(f"it is longer than {MAX_BYTES >> 20} MiB; split it into sentences, one a line")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        return Failure(f"it is not UTF-8 at byte {error.start + 1}; convert {name} to UTF-8 first")


def _lines(stream: IO[bytes], name: str, whole: bool = False) -> Iterator[tuple[int, bytes]]:
    """Yield the lines with their numbers, as they are but for a byte order mark; binary data is refused."""
    ahead: bytes = stream.peek(1) if hasattr(stream, "peek") else b""  # binary data has line ends by chance
    for number, line in enumerate([stream.read(MAX_BYTES + 1)] if whole else bounded_lines(stream), start=1):
        if number == 1 and (line.startswith(_MARKS) or b"\0" in line + ahead):
            hint = "; --from reads a saved trace" if name.endswith(".safetensors") else ""
            hint = "; the name of a Parquet file ends in .parquet" if line.startswith(b"PAR1") else hint
            expected = f"expected UTF-8, one sentence a line{hint}"
            raise InputError(f"{name} is compressed, binary or in another encoding; {expected}")
        yield number, line.removeprefix(_BOM) if number == 1 else line


def bounded_lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines; of one that is too long, as much as shows it."""
    while line := stream.readline(MAX_BYTES + 1):
        yield line
        while len(line) > MAX_BYTES and not line.endswith(b"\n"):
            line = stream.readline(MAX_BYTES + 1)


# --- JSON Lines ------------------------------------------------------------------------------------------


def read_jsonl(stream: IO[bytes], name: str, column: str, chat: bool = False, folder: str = "") -> Iterator[CorpusItem]:
    """Yield the text, or with `chat` the messages, in a field of the object of each line; with the pictures it names.

    Their paths begin in a folder.
    """
    import orjson

    is_first = True
    for number, line in _lines(stream, name):
        text: Any = decode(line, name)
        if isinstance(text, str) and text and not text.isspace():
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                text = Failure(f"not JSON: {visible(str(error))}")
            else:
                if is_first and isinstance(record, dict) and column not in record:
                    raise InputError(f"{name} has no {_no_such_column(column, list(record))}")
                text = _text_of(record, column, chat, folder)
                is_first = is_first and not isinstance(record, dict)
        yield CorpusItem(number, text)


def _text_of(record: Any, column: str, chat: bool, folder: str) -> Any:
    """Return the text of a record, with its pictures, or why it has none."""
    if not isinstance(record, dict):
        return Failure("not a JSON object")
    if column not in record:
        return Failure(f"it has no {_no_such_column(column, list(record))}")
    text = record[column]
    if chat and isinstance(text, list):
        text = _conversation(text)
    elif not isinstance(text, str):
        text = Failure(f"its '{visible(column)}' is not text")
    if "image" not in record or column == "image" or isinstance(text, Failure):
        return text
    from attncli.encoding.chat import Conversation, PicturedConversation
    from attncli.encoding.pictures import PicturedText

    kind = PicturedConversation if isinstance(text, Conversation) else PicturedText
    return kind(text, record["image"], folder)


def _conversation(value: Any, is_parsed: bool = True) -> str | Failure:
    """Return a list of messages, from JSON or parsed, or the reason against it."""
    from attncli.encoding.chat import Conversation

    try:
        return Conversation.of(value) if is_parsed else Conversation.parsed(value)
    except InputError as error:
        return Failure(str(error))


def _no_such_column(name: str, names: Sequence[str]) -> str:
    """Return an error's words about a missing column or field, with the first of the existing ones."""
    there = ", ".join(visible(name_in_file[:60]) for name_in_file in names[:20]) + (", …" if len(names) > 20 else "")
    return f"column '{visible(name)}'; --column names one of {there}{visible(did_you_mean(name, names))}"


# --- columns ---------------------------------------------------------------------------------------------


def read_csv(stream: IO[bytes], name: str, delimiter: str, column: str) -> Iterator[CorpusItem]:
    """Yield the text of each row of CSV or TSV after the header; the first row has the number 1.

    Quotes are doubled in quotes and may have line ends between them, as spreadsheets, pandas and DuckDB write them.
    After a row that cannot be read, the next line is read on.
    """
    import csv

    csv.field_size_limit(MAX_BYTES)  # of the whole process, and too small for a book
    # Bytes that are no UTF-8 harm the columns alone in which they are.
    lines = (line.decode("utf-8", "surrogateescape") for _, line in _lines(stream, name))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)

    def next_row() -> list[str] | Failure | None:
        try:
            return next(filter(None, reader), None)
        except csv.Error as error:
            return Failure(f"not a row: {error}; double a quote within quotes")

    header = next_row() or [column]
    if isinstance(header, Failure):
        raise InputError(f"{name}: its header cannot be read: {header.reason}")
    index = _column_index(header, name, column)
    rows: Iterator[list[str] | Failure] = iter(next_row, None)
    for number, row in enumerate(rows, start=1):
        text: str | Failure
        if isinstance(row, Failure):
            text = row
        elif len(row) != len(header):
            text = Failure(f"it has {plural(len(row), 'column')}, and the header {len(header)}")
        else:
            text = decode(row[index].encode("utf-8", "surrogateescape"), name)
        yield CorpusItem(number, text)


def _column_index(header: Sequence[str], name: str, column: str) -> int:
    if column not in header:
        raise InputError(f"{name} has no {_no_such_column(column, header)}")
    if header.count(column) > 1:
        raise InputError(f"{name} has {header.count(column)} columns '{visible(column)}'; expected one")
    return header.index(column)


def read_parquet(file: SentenceFile, column: str, chat: bool = False) -> Iterator[CorpusItem]:
    """Yield the text of each row of a Parquet file in bounded memory, or with `chat` its messages; see `read_csv`."""
    name = visible(file.name)
    with _open_parquet(file) as table:
        schema = table.schema_arrow
        kind = str(schema.field(_column_index(schema.names, name, column)).type)
        # Older writers do not say which bytes are text.
        is_text = re.fullmatch(r"(dictionary<values=)?(large_)?(string|binary)(_view)?(,.*)?", kind)
        if not (is_text or (chat and re.match("(large_)?list<", kind))):
            raise InputError(f"column '{visible(column)}' of {name} is {visible(kind)}; expected text")
        number, null = 0, Failure(f"its '{visible(column)}' is not text")
        for group in range(table.num_row_groups):
            rows, top = table.metadata.row_group(group), column.partition(".")[0]
            chunks = [rows.column(index) for index in range(rows.num_columns)]
            chunks = [chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] == top]
            packed = sum(chunk.total_compressed_size for chunk in chunks)
            size = sum(chunk.total_uncompressed_size for chunk in chunks)
            if size > max(_MAX_UNPACKED, _MOST_EXPANSION * packed):
                raise InputError(f"{name} has {packed >> 10:,} KiB of text that unpack to {size >> 20:,} MiB; split it")
            row_size = max(size // max(rows.num_rows, 1), 1)
            count = min(_ROWS, max(_MAX_BATCH // row_size, 1))
            for batch in table.iter_batches(count, [group], [column], False):
                for value in _values(batch.column(0), name):
                    number += 1
                    yield CorpusItem(number, null if value is None else value)


def count_rows(file: SentenceFile) -> int:
    """Return the number of rows in a Parquet file's footer."""
    with _open_parquet(file) as table:
        return int(table.metadata.num_rows)


@contextmanager
def _open_parquet(file: SentenceFile) -> Iterator[ParquetFile]:
    require("a Parquet file", "pyarrow")
    from pyarrow.parquet import ParquetFile

    with file.open_raw() as source, ParquetFile(source, pre_buffer=False, buffer_size=_BUFFER) as table:
        yield table


def _values(array: Array, name: str) -> Iterator[Any]:
    """Yield the values of a column of texts or messages, with failures for text that is not UTF-8."""
    import pyarrow

    if is_list := re.match("(large_)?list<", str(array.type)):
        values = array.to_pylist()
    else:
        plain = array.dictionary_decode() if pyarrow.types.is_dictionary(array.type) else array
        values = plain.cast(pyarrow.large_binary()).to_pylist()
    for value in values:
        yield None if value is None else _conversation(value) if is_list else decode(value, name)
