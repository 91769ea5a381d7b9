"""Reads lines of UTF-8 as sentences, and refuses what is no text at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from attncli.engines.source import CorpusItem
from attncli.errors import Failure, InputError

MAX_BYTES = 2**24  # of a line; no model reads a text that is nearly as long
MAX_EMPTY = 2**16  # lines that follow each other; a small file may unpack to any number

_BOM = b"\xef\xbb\xbf"
# Encodings by their marks, the longer one first: that of UTF-16 begins it.
_ENCODINGS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
# What unpacks a file, by the bytes that it begins with.
_COMPRESSED = {
    b"\x1f\x8b": "gunzip -c",
    **{b"BZh%d1AY&SY" % level: "bunzip2 -c" for level in range(1, 10)},
    b"\xfd7zXZ": "unxz -c",
    b"\x28\xb5\x2f\xfd": "unzstd -c",
}
# And what else is no text, though no byte of its first line may be 0. No sentence begins with any of these.
_BINARY = {
    b"PK\x03\x04": "a zip archive",
    b"%PDF-": "a PDF document",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
}
_SAMPLE = 256  # bytes


def read_text(stream: IO[bytes], name: str, whole: bool = False, is_file: bool = True) -> Iterator[CorpusItem]:
    """Yield the lines; the ends of lines are not text, and an empty one is an empty text.

    Args:
        stream: what is read.
        name: what it is called, harmless.
        whole: whether it is one text, newlines and all.
        is_file: whether that is the name of a file.

    Raises:
        InputError: it is no text.
    """
    for number, line in read_lines(stream, name, whole, is_file):
        content = (b"" if line.isspace() else line) if whole else line.rstrip(b"\r\n")
        yield CorpusItem(number, decode(content, name))


def read_lines(stream: IO[bytes], name: str, whole: bool = False, is_file: bool = True) -> Iterator[tuple[int, bytes]]:
    """Yield the lines with their numbers, as they are but for a byte order mark; see `read_text`."""
    peek = getattr(stream, "peek", None)
    ahead: bytes = peek(1) if peek else b""
    empty = 0
    for number, line in enumerate([stream.read(MAX_BYTES + 1)] if whole else _bounded_lines(stream), start=1):
        if number == 1:
            _refuse_binary(line, ahead, name, is_file)
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


def _refuse_binary(line: bytes, ahead: bytes, name: str, is_file: bool) -> None:
    """Raise InputError for what is compressed, binary or in another encoding, by its first line.

    `ahead` are the first bytes, of other lines too: binary data has line ends by chance.
    """

    def find(kinds: dict[bytes, str]) -> str | None:
        return next((kind for mark, kind in kinds.items() if line.startswith(mark)), None)

    if unpack := find(_COMPRESSED):
        import shlex

        before = f"{unpack} {shlex.quote(name)} |" if is_file else f"… | {unpack.split()[0]} |"
        raise InputError(f"{name} is packed and no text; unpack it first: {before} attn inspect -")
    if encoding := find(_ENCODINGS):
        by = "by the byte order mark that it begins with"
    elif encoding := _utf16_without_mark(line[:_SAMPLE]):
        by = "by its zero bytes"
    if encoding:
        raise InputError(
            f"{name} is {encoding}, {by}; convert it to UTF-8 first, such as with iconv -f {encoding} -t UTF-8"
        )
    if what := find(_BINARY) or ("binary" if b"\0" in line or b"\0" in ahead else None):
        hint = "; --from reads a saved trace" if name.endswith(".safetensors") else ""
        hint = "; the name of a Parquet file ends in .parquet" if line.startswith(b"PAR1") else hint
        raise InputError(f"{name} is {what} and no text; expected UTF-8, one sentence a line{hint}")


def _utf16_without_mark(sample: bytes) -> str | None:
    """Return which UTF-16 a text without a mark is in: of most letters one of the two bytes is 0."""
    for encoding, zeros, others in (
        ("UTF-16LE", sample[1::2], sample[::2]),
        ("UTF-16BE", sample[::2], sample[1::2]),
    ):
        if zeros and zeros.count(0) > len(zeros) * 0.8 and 0 not in others.rstrip(b"\n"):
            return encoding
    return None
