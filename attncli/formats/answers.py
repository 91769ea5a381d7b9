"""JSON piece by piece, and the documents of a stream of answers: one, an array of them, or one a line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, TypeVar

from attncli.errors import AttnError, Failure
from attncli.formats import gathered

Answer = TypeVar("Answer")
Answered = tuple[int, Answer | Failure]  # a sentence's number, and what it is answered by
Document = Callable[[int, Answer], Iterable[str]]  # a sentence's number and its answer to the pieces of its document


def write_array(answers: Iterable[Answered[Answer]], document: Document[Answer]) -> Iterator[str]:
    """Write one document for one sentence, an array of documents for several; it may lack those of failures.

    An error that ends the answers ends the array first, which is whole in any case.
    """
    failure: list[AttnError] = []
    waiting = _until(answers, failure)
    first = list(islice(waiting, 2))  # answers, not documents: those of long sentences are too large to wait
    is_array = len(first) > 1 or bool(failure) or any(_is_left_out(answer) for _, answer in first)
    opening, closing = ("[", "]\n") if is_array else ("", "\n")
    for sentence, answer in chain(first, waiting):
        if not _is_left_out(answer):
            yield from gathered(chain([opening], _answered(sentence, answer, document)))
            opening = ",\n"
    if first:
        yield closing if opening != "[" else opening + closing
    for error in failure:
        raise error


def _until(answers: Iterable[Answered[Answer]], failure: list[AttnError]) -> Iterator[Answered[Answer]]:
    """Yield the answers up to the error that ends them, which is put into a list."""
    try:
        yield from answers
    except AttnError as error:
        failure.append(error)


def write_each(answers: Iterable[Answered[Answer]], document: Document[Answer]) -> Iterator[str]:
    """Write one document a line."""
    for sentence, answer in answers:
        if not _is_left_out(answer):
            yield from gathered(chain(_answered(sentence, answer, document), ["\n"]))


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


def _is_left_out(answer: object) -> bool:
    return isinstance(answer, Failure) and not answer.is_kept


def _answered(sentence: int, answer: Answer | Failure, document: Document[Answer]) -> Iterable[str]:
    if isinstance(answer, Failure):
        return [dumped(answer.as_dict(sentence))]
    return document(sentence, answer)
