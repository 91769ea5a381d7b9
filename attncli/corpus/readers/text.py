"""Reads lines of UTF-8 as sentences, and refuses files that hold no text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from attncli.engines.source import CorpusItem
from attncli.errors import Failure, InputError

MAX_BYTES = 2**24  # of a line; no model reads a text that is nearly as long
MAX_EMPTY = 2**16  # lines that follow each other; a small file may unpack to any number

_BOM = b"\xef\xbb\xbf"
# Beginnings of files without text, which no sentence has: packed, archives, documents, pictures, UTF-16.
_MARKS = (
    b"\x1f\x8b", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", *(b"BZh%d1AY&SY" % level for level in range(1, 10)), b"PK\x03\x04",
    b"%PDF-", b"\x89PNG", b"\xff\xd8\xff", b"\xff\xfe", b"\xfe\xff",
)  # fmt: skip


def read_text(stream: IO[bytes], name: str, whole: bool = False) -> Iterator[CorpusItem]:
    """Yield the lines of a stream, or all of it as one text; the ends of lines are not text, an empty one is empty.

    InputError with the name, which has to be safe to print, if it is no text.
    """
    for number, line in read_lines(stream, name, whole):
        yield CorpusItem(number, decode(line if whole else line.rstrip(b"\r\n"), name))


def read_lines(stream: IO[bytes], name: str, whole: bool = False) -> Iterator[tuple[int, bytes]]:
    """Yield the lines with their numbers, as they are but for a byte order mark; see `read_text`."""
    peek = getattr(stream, "peek", None)
    ahead: bytes = peek(1) if peek else b""
    empty = 0
    for number, line in enumerate([stream.read(MAX_BYTES + 1)] if whole else _bounded_lines(stream), start=1):
        if number == 1:
            _refuse_binary(line, ahead, name)
        empty = empty + 1 if line.isspace() else 0
        if empty > MAX_EMPTY:
            raise InputError(f"{name} has no text in the {empty:,} lines up to line {number:,}; remove them")
        yield number, line.removeprefix(_BOM) if number == 1 else line


def count_lines(stream: IO[bytes]) -> int:
    """Return how many lines there are."""
    return sum(1 for _ in _bounded_lines(stream))


def decode(content: bytes, name: str) -> str | Failure:
    """Return the text that bytes spell, or why they spell none."""
    if len(content) > MAX_BYTES:
        return Failure(f"it is longer than {MAX_BYTES >> 20} MiB; split it into sentences, one a line")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        return Failure(f"it is not UTF-8 at byte {error.start + 1}; convert {name} to UTF-8 first")


def _bounded_lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines; of one that is too long, as much as shows it, and the rest of it is not kept."""
    while line := stream.readline(MAX_BYTES + 1):
        yield line
        while len(line) > MAX_BYTES and not line.endswith(b"\n"):
            line = stream.readline(MAX_BYTES + 1)


def _refuse_binary(line: bytes, ahead: bytes, name: str) -> None:
    """Raise InputError for compressed or binary data or another encoding, by its first line.

    `ahead` are the first bytes, of other lines too: binary data has line ends by chance.
    """
    if line.startswith(_MARKS) or b"\0" in line + ahead:
        hint = "; --from reads a saved trace" if name.endswith(".safetensors") else ""
        hint = "; the name of a Parquet file ends in .parquet" if line.startswith(b"PAR1") else hint
        raise InputError(
            f"{name} is compressed, binary or in another encoding; expected UTF-8, one sentence a line{hint}"
        )
