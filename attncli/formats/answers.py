"""JSON piece by piece, and the documents of a stream of answers: one, an array of them, or one a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from attncli.errors import AttnError, Failure

Answered = tuple[int, Iterable[str] | Failure]  # a sentence's number, and the pieces of its document
Parts = Iterable[tuple[int, Any | Failure]]  # likewise, of any machine format

_PIECE = 1_000_000  # characters


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


def write_array(answers: Iterable[Answered]) -> Iterator[str]:
    """Write one document for one sentence, an array of documents for several; failures have none.

    An error that ends the answers ends the array first, which is whole in any case.
    """
    failure: list[AttnError] = []
    waiting = _until(answers, failure)
    first = list(islice(waiting, 2))  # answers whose documents are still to be made, if they are made here
    is_array = len(first) > 1 or bool(failure) or any(isinstance(answer, Failure) for _, answer in first)
    opening, closing = ("[", "]\n") if is_array else ("", "\n")
    for _, answer in chain(first, waiting):
        if not isinstance(answer, Failure):
            yield from gathered(chain([opening], answer))
            opening = ",\n"
    if first:
        yield closing if opening != "[" else opening + closing
    for error in failure:
        raise error


def _until(answers: Iterable[Answered], failure: list[AttnError]) -> Iterator[Answered]:
    """Yield the answers up to the error that ends them, which is put into a list."""
    try:
        yield from answers
    except AttnError as error:
        failure.append(error)


def write_each(answers: Iterable[Answered]) -> Iterator[str]:
    """Write one document a line."""
    for _, answer in answers:
        if not isinstance(answer, Failure):
            yield from gathered(chain(answer, ["\n"]))


def dumped(value: Any) -> str:
    """Return a value as JSON."""
    # ASCII alone: no control or bidirectional character of a token reaches a terminal, and every stdout takes it.
    return json.dumps(value, allow_nan=False)


def opened(members: dict[str, Any]) -> str:
    """Return an object as JSON that more members are to follow in."""
    return dumped(members)[:-1]


def array(items: Iterable[Iterable[str]], comma: str = ", ") -> Iterator[str]:
    """Yield the pieces of an array, given those of its items."""
    opening = "["
    for item in items:
        yield opening
        yield from item
        opening = comma
    yield "]" if opening != "[" else "[]"
