"""Sizes of the pages of a Parquet file, from their headers: pyarrow unpacks a page whole, however large it is.

A header is a struct of Thrift's compact protocol. Sizes in the footer are not used: a hostile file may lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarrow.parquet import ColumnChunkMetaData

_HEADERS = (2**12, 2**24)  # bytes that are read for a header; statistics with long texts may be part of it
_UNPACKED, _PACKED = 2, 3  # fields: the sizes of a page


def page_sizes(source: Any, chunk: ColumnChunkMetaData) -> Iterator[int]:
    """Yield how many bytes each page of a column of a row group unpacks to.

    Raises:
        OSError: a header is damaged.
    """
    offset = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < offset:
        offset = chunk.dictionary_page_offset
    end = offset + chunk.total_compressed_size
    while offset < end:
        fields, length = _header(source, offset)
        yield fields[_UNPACKED]
        offset += length + fields[_PACKED]


def _header(source: Any, place: int) -> tuple[dict[int, Any], int]:
    """Return the fields of a header by their numbers, and its length."""
    for size in _HEADERS:
        source.seek(place)
        with suppress(IndexError, ValueError, RecursionError):
            fields, length = _struct(source.read(size), 0)
            if min(fields.get(_UNPACKED, -1), fields.get(_PACKED, -1)) >= 0:
                return fields, length
    raise OSError("a page header is damaged")


def _struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """Return the fields of a struct by their numbers, and where it ends."""
    fields: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        fields[number], at = _value(data, at, head & 15)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in (1, 2):  # a boolean is its kind
        return kind == 1, at
    if kind == 3:
        return data[at], at + 1
    if kind in (4, 5, 6):
        return _integer(data, at)
    if kind == 7:
        return None, at + 8
    if kind == 8:
        size, at = _varint(data, at)
        return None, at + size
    if kind == 12:
        return _struct(data, at)
    raise ValueError(kind)


def _integer(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at
