"""Reads a field of each object of JSON Lines as a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, Any

import orjson

from attncli.corpus.readers.text import MAX_BYTES, decode, read_lines
from attncli.engines.source import CorpusItem
from attncli.errors import Failure, InputError
from attncli.text import did_you_mean, visible

_MAX_NAMES = 20  # that are listed; a table may have thousands
_MAX_NAME = 60  # letters of a name; where a header is missing, it is a sentence


def read_jsonl(stream: IO[bytes], name: str, column: str, chat: bool = False, folder: str = "") -> Iterator[CorpusItem]:
    """Yield the text, or with `chat` the messages, in a field of the object of each line; with the pictures it names.

    Their paths begin in a folder.

    Raises:
        InputError: it is no text, or its first object has no such field.
    """
    is_first = True
    for number, line in read_lines(stream, name):
        if not line.strip():
            yield CorpusItem(number, "")
            continue
        record = _parse(line, name)
        if is_first and not isinstance(record, Failure):
            if column not in record:
                raise InputError(f"{name} has no {no_such_column(column, list(record))}")
            is_first = False
        yield CorpusItem(number, record if isinstance(record, Failure) else _pictured(record, column, chat, folder))


def no_such_column(name: str, names: Sequence[str]) -> str:
    """Return an error's sentence about a missing column or field, with the names of the existing ones."""
    short = (each if len(each) <= _MAX_NAME else each[: _MAX_NAME - 1] + "…" for each in names[:_MAX_NAMES])
    there = ", ".join(map(visible, short)) + (", …" if len(names) > _MAX_NAMES else "")
    return f"column '{visible(name)}'; --column names one of {there}{visible(did_you_mean(name, names))}"


def _parse(line: bytes, name: str) -> dict[str, Any] | Failure:
    why = "not a JSON object"
    try:
        record = orjson.loads(line) if len(line) <= MAX_BYTES else None
        if isinstance(record, dict):
            return record
    except orjson.JSONDecodeError as error:
        why = f"not JSON: {visible(str(error))}"
    text = decode(line, name)  # which may be no text at all
    return text if isinstance(text, Failure) else Failure(why)


def _pictured(record: dict[str, Any], column: str, chat: bool, folder: str) -> str | Failure:
    text = _text(record, column, chat)
    if "image" not in record or column == "image" or isinstance(text, Failure):
        return text
    from attncli.encoding.chat import Conversation, PicturedConversation
    from attncli.encoding.pictures import PicturedText

    kind = PicturedConversation if isinstance(text, Conversation) else PicturedText
    return kind(text, record["image"], folder)


def _text(record: dict[str, Any], column: str, chat: bool) -> str | Failure:
    if column not in record:
        return Failure(f"it has no {no_such_column(column, list(record))}")
    value = record[column]
    if chat and isinstance(value, list):
        return conversation_of(value)
    return value if isinstance(value, str) else Failure(f"its '{visible(column)}' is not text")


def conversation_of(value: Any) -> str | Failure:
    """Return a list of messages as a conversation, or a failure for any other value."""
    from attncli.encoding.chat import Conversation

    try:
        return Conversation.of(value)
    except InputError as error:
        return Failure(str(error))
