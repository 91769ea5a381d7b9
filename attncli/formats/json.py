"""JSON, and the documents of a stream of results: one, an array of them, or one a line."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

import numpy as np
import orjson

from attncli.errors import AttnError, Failure

Parts = Iterable[tuple[int, Any | Failure]]  # a sentence's number, and the pieces of its document

_BEYOND_ASCII = re.compile(r"[^\x00-\x7e]+")


def dumps(value: Any, precision: int | None = None) -> str:
    """Return a value as JSON in ASCII: no control or bidirectional character of a token reaches a terminal."""
    text = orjson.dumps(plain(value, precision), option=orjson.OPT_SERIALIZE_NUMPY).decode()
    return _BEYOND_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)


def plain(value: Any, precision: int | None) -> Any:
    """Return a value as JSON can hold it: NaN and the infinities as strings, a float32 by its shortest digits."""
    if isinstance(value, Mapping):
        return {name: plain(member, precision) for name, member in value.items()}
    if isinstance(value, np.ndarray) and (value.dtype.kind != "f" or (precision is None and np.isfinite(value).all())):
        return np.ascontiguousarray(value)
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(item, precision) for item in value]
    if isinstance(value, str):
        return value.encode(errors="replace").decode()  # halves of characters are none
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, np.bool):
        return bool(value)
    if not math.isfinite(value):
        return str(float(value))
    return float(str(value)) if precision is None else round(float(value), precision)


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
    documents = (result for _, result in chain(first, waiting) if not isinstance(result, Failure))
    if first:
        yield from array(documents, ",\n") if is_array else chain.from_iterable(documents)
        yield "\n"
    for error in errors:
        raise error


def write_each(results: Parts) -> Iterator[str]:
    """Write one document a line."""
    for _, result in results:
        if not isinstance(result, Failure):
            yield from result
            yield "\n"


def array(items: Iterable[Iterable[str]], comma: str = ",") -> Iterator[str]:
    """Yield the pieces of an array, given those of its items."""
    opening = "["
    for item in items:
        yield opening
        yield from item
        opening = comma
    yield "]" if opening != "[" else "[]"
