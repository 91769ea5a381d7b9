"""Tokens for programs: the JSON document `attncli.tokens/1`, and tidy rows, one a token or a word."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from attncli.errors import Failure
from attncli.formats.answers import dumped, write_array, write_each
from attncli.trace.tokenization import SCHEMA, Choice, Tokenization

Answers = Iterable[tuple[int, Tokenization | Failure]]

# The columns with their types in Parquet; those of `--words` have pieces and no ids.
_TOKENS = {
    "sentence": "int64", "index": "int32", "id": "int32", "text": "string", "start": "int32", "end": "int32",
    "special": "bool_", "segment": "int32", "word": "int32", "unknown": "bool_",
}  # fmt: skip
_WORDS = {name: kind for name, kind in _TOKENS.items() if name not in ("id", "word")} | {"pieces": "string"}


def write_json(answers: Answers, choice: Choice) -> Iterator[str]:
    """Write one document for one sentence, an array of documents for several."""
    return write_array(answers, partial(_document, choice=choice))


def write_lines(answers: Answers, choice: Choice) -> Iterator[str]:
    """Write one document a line."""
    return write_each(answers, partial(_document, choice=choice))


def write_tsv(answers: Answers, choice: Choice) -> Iterator[str]:
    """Write tab-separated rows, the header first; what is not known is an empty field."""
    return _rows(answers, choice, "\t")


def write_csv(answers: Answers, choice: Choice) -> Iterator[str]:
    """Write comma-separated rows, quoted where they must be, the header first."""
    return _rows(answers, choice, ",")


def write_parquet(answers: Answers, choice: Choice, path: Path) -> None:
    """Write the rows with types, of all sentences but those that failed.

    Raises:
        InputError: the file cannot be written.
    """
    import pyarrow

    from attncli.formats.parquet import typed, write_tables

    schema = typed(_columns(choice))
    good = ((number, answer) for number, answer in answers if not isinstance(answer, Failure))
    tables = (pyarrow.Table.from_pylist(list(_records(*one, choice)), schema) for one in good)
    write_tables(tables, schema, path)


def _document(sentence: int, tokenization: Tokenization, choice: Choice) -> Iterator[str]:
    yield dumped({
        "schema": SCHEMA,
        "sentence": sentence,
        "source": {name: getattr(tokenization, name) for name in ("kind", "model", "vocab")},
        "text": tokenization.text,
        "pair": tokenization.pair,
        "length": len(tokenization.tokens),
        "limit": tokenization.limit,
        "tokens": list(tokenization.as_dicts(choice)),
    })  # fmt: skip


def _columns(choice: Choice) -> dict[str, str]:
    return _WORDS if choice.words else _TOKENS


def _records(number: int, tokenization: Tokenization, choice: Choice) -> Iterator[dict[str, Any]]:
    """Yield the rows of one sentence, by the names of their columns."""
    for token in tokenization.as_dicts(choice):
        pieces = {"pieces": " ".join(map(str, token["pieces"]))} if choice.words else {}
        yield {"sentence": number, **token, **pieces}


def _rows(answers: Answers, choice: Choice, comma: str) -> Iterator[str]:
    from attncli.formats.rows import comma_separated, escaped

    def field(value: Any) -> str:
        if isinstance(value, str):
            return escaped(value)
        return "" if value is None else str(value).lower()

    join = comma_separated if comma == "," else comma.join
    columns = _columns(choice)
    header = join(columns) + "\n"
    for number, answer in answers:
        records = [] if isinstance(answer, Failure) else _records(number, answer, choice)
        lines = [join([field(record[column]) for column in columns]) + "\n" for record in records]
        # No header where an error ends the stream before its first sentence.
        yield header + "".join(lines)
        header = ""
