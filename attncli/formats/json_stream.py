"""JSON piece by piece, and the documents of a stream of results: one, an array of them, or one a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from attncli.attention import row_blocks
from attncli.errors import AttnError, Failure
from attncli.formats.numbers import matrix, number, rows_as_numbers

Parts = Iterable[tuple[int, Any | Failure]]  # a sentence's number, and the pieces of its document

_PIECE = 1_000_000  # characters


class RowBlocks(NamedTuple):
    """A matrix that is made as it is written, in blocks of rows."""

    blocks: Iterable[np.ndarray[Any, Any]]


def gathered(pieces: Iterable[str]) -> Iterator[str]:
    """Join small pieces to large ones: each piece that is written is flushed."""
    waiting: list[str] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _PIECE:
            yield "".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield "".join(waiting)


def write_array(results: Parts) -> Iterator[str]:
    """Write one document for one sentence, an array of documents for several; failures have none.

    An error that ends the results ends the array first, which is whole in any case.
    """
    errors: list[AttnError] = []

    def until() -> Iterator[tuple[int, Any | Failure]]:
        try:
            yield from results
        except AttnError as error:
            errors.append(error)

    waiting = until()
    first = list(islice(waiting, 2))  # results whose documents are not made yet, if they are made here
    is_array = len(first) > 1 or bool(errors) or any(isinstance(result, Failure) for _, result in first)
    opening, closing = ("[", "]\n") if is_array else ("", "\n")
    for _, result in chain(first, waiting):
        if not isinstance(result, Failure):
            yield from gathered(chain([opening], result))
            opening = ",\n"
    if first:
        yield closing if opening != "[" else opening + closing
    for error in errors:
        raise error


def write_each(results: Parts) -> Iterator[str]:
    """Write one document a line."""
    for _, result in results:
        if not isinstance(result, Failure):
            yield from gathered(chain(result, ["\n"]))


def dumped(value: Any) -> str:
    """Return a value as JSON."""
    # ASCII alone: no control or bidirectional character of a token reaches a terminal, and every stdout takes it.
    return json.dumps(value, allow_nan=False)


def plain(value: Any, precision: int | None) -> Any:
    """Return a value with numbers that JSON can hold: see `attncli.formats.numbers.number`."""
    if isinstance(value, Mapping):
        return {name: plain(member, precision) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, precision) for item in value]
    return value if isinstance(value, str | int) else number(value, precision)


def pieces(value: Any, precision: int | None) -> Iterator[str]:
    """Yield the pieces of JSON; an object may have matrices as members, and iterators, which are arrays."""
    if isinstance(value, dict):
        opening = "{"
        for name, member in value.items():
            yield f"{opening}{dumped(name)}: "
            yield from pieces(member, precision)
            opening = ", "
        yield "}" if value else "{}"
    elif isinstance(value, np.ndarray) and value.ndim == 1:
        yield rows_as_numbers(value[None], precision)[1:-1]
    elif isinstance(value, np.ndarray):
        yield from matrix((value[rows] for rows in row_blocks(np.arange(len(value)), value.shape[1])), precision)
    elif isinstance(value, RowBlocks):
        yield from matrix(value.blocks, precision)
    elif isinstance(value, Iterator):
        yield from array(pieces(item, precision) for item in value)
    else:
        yield dumped(value)


def array(items: Iterable[Iterable[str]], comma: str = ", ") -> Iterator[str]:
    """Yield the pieces of an array, given those of its items."""
    opening = "["
    for item in items:
        yield opening
        yield from item
        opening = comma
    yield "]" if opening != "[" else "[]"
