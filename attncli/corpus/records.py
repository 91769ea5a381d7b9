"""JSON Lines as sentences: a field of the object on each line, and other fields that are kept."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import IO, Any

import orjson

from attncli.corpus.lines import MOST_BYTES, decoded, lines_in
from attncli.engines.source import CorpusItem
from attncli.errors import NO_METADATA, Failure, InputError
from attncli.text import did_you_mean, visible

_LOOKED_AT = 100  # lines; where none of them has a field, its name is wrong


def records_in(
    stream: IO[bytes], name: str, field: str, keep: Sequence[str], chat: bool = False
) -> Iterator[CorpusItem]:
    """Yield the text of each line.

    Args:
        stream: what is read.
        name: what it is called, harmless.
        field: that holds the text.
        keep: the fields that are kept; one that a line lacks is null.
        chat: whether a text may be a list of messages.

    Raises:
        InputError: it is no text, or has no such field.
    """
    lines = lines_in(stream, name)
    for number, line in chain(_looked_at(lines, name, dict.fromkeys((field, *keep)) | {field: "--field"}), lines):
        if not line.strip():
            yield CorpusItem(number, "")
            continue
        record = _record(line, name)
        if isinstance(record, Failure):
            yield CorpusItem(number, record)
            continue
        kept = {one: record.get(one) for one in keep}
        bad = next((reason for one, value in kept.items() if (reason := _not_kept(one, value, line))), None)
        if bad is None:
            yield CorpusItem(number, _text(record, field, chat), kept or NO_METADATA)
        else:
            yield CorpusItem(number, Failure(bad))


def _not_kept(name: str, value: Any, line: bytes) -> str | None:
    """Return why the value of a field cannot be kept; None where it can."""
    if isinstance(value, list | dict):
        return f"its '{visible(name)}' is {kind_of(value)}; what is kept are texts, numbers, true, false and null"
    if isinstance(value, float) and abs(value) >= 2**63 and isinstance(json.loads(line)[name], int):
        # Which orjson has rounded.
        return f"its '{visible(name)}' is a whole number of more than 64 bits; in quotes it would be kept as it is"
    return None


def names_in(stream: IO[bytes], name: str) -> list[str]:
    """Return the fields of the first object; see `records_in`."""
    records = (_record(line, name) for _, line in lines_in(stream, name))
    return next((list(record) for record in records if not isinstance(record, Failure)), [])


def _looked_at(
    lines: Iterator[tuple[int, bytes]], name: str, wanted: dict[str, str | None]
) -> Iterable[tuple[int, bytes]]:
    """Return the first lines, up to where every wanted field has been seen.

    Raises:
        InputError: one of them is nowhere.
    """
    looked: list[tuple[int, bytes]] = []
    found: dict[str, None] = {}
    missing = list(wanted)
    for number, line in lines:
        looked.append((number, line))
        record = _record(line, name)
        found |= {} if isinstance(record, Failure) else dict.fromkeys(record)
        missing = [one for one in wanted if one not in found]
        if not missing or len(looked) == _LOOKED_AT:
            break
    if missing and found:
        raise InputError(f"{name} has no field {no_such(missing[0], wanted[missing[0]], list(found))}")
    return looked


_SHOWN = 20  # names; a table may have thousands
_LONG = 60  # letters of a name; where a header is missing, it is a sentence


def no_such(name: str, option: str | None, names: Sequence[str]) -> str:
    """Return which column or field there is none of, and which there are; `option` is how to choose."""
    short = (each if len(each) <= _LONG else each[: _LONG - 1] + "…" for each in names[:_SHOWN])
    there = ", ".join(map(visible, short)) + (", …" if len(names) > _SHOWN else "")
    those = "there are" if option is None else f"{option} names one of"
    return f"'{visible(name)}'; {those} {there}{visible(did_you_mean(name, names))}"


def _record(line: bytes, name: str) -> dict[str, Any] | Failure:
    if len(line) <= MOST_BYTES:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            text = decoded(line, name)
            return text if isinstance(text, Failure) else Failure(f"it is no JSON: {visible(str(error))}")
        if isinstance(record, dict):
            return record
        return Failure(f"it is {kind_of(record)}; expected a JSON object")
    text = decoded(line, name)
    assert isinstance(text, Failure)
    return text


def _text(record: dict[str, Any], field: str, chat: bool) -> str | Failure:
    if field not in record:
        return Failure(f"it has no field {no_such(field, '--field', list(record))}")
    value = record[field]
    if chat and isinstance(value, list):
        return conversation_of(value)
    return value if isinstance(value, str) else Failure(f"its '{visible(field)}' is {kind_of(value)}; expected text")


def conversation_of(value: Any) -> str | Failure:
    """Return a list of messages, or why it is none."""
    from attncli.encoding.chat import Conversation

    try:
        return Conversation.of(value)
    except InputError as error:
        return Failure(str(error))


_KINDS = {"bool": "true or false", "int": "a number", "float": "a number", "str": "a text", "list": "a list"}


def kind_of(value: Any) -> str:
    """Return what JSON calls a value."""
    return "null" if value is None else _KINDS.get(type(value).__name__, "an object")
