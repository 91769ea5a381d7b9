"""Tokens for programs: the JSON document `attncli.tokens/1`, and tidy rows, one a token or a word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncli.errors import metadata_json
from attncli.formats.answers import dumped, write_array, write_each
from attncli.trace.tokenization import SCHEMA, Choice, Tokenization

if TYPE_CHECKING:
    from attncli.formats import Parts

# The columns with their types in Parquet; those of `--words` have pieces and no ids.
_TOKENS = {
    "sentence": "int64", "index": "int32", "id": "int32", "text": "string", "start": "int32", "end": "int32",
    "special": "bool_", "segment": "int32", "word": "int32", "unknown": "bool_",
}  # fmt: skip
_WORDS = {name: kind for name, kind in _TOKENS.items() if name not in ("id", "word")} | {"pieces": "string"}


def part_of(chosen: str, number: int, tokenization: Tokenization, choice: Choice) -> Iterator[Any]:
    """Yield what a sentence's tokens are in a machine format; see `formats.part_of`."""
    if chosen in ("json", "jsonl"):
        return _document(number, tokenization, choice)
    if chosen == "parquet":
        return _tables(number, tokenization, choice)
    return _rows(number, tokenization, choice, chosen)


def joined(chosen: str, parts: Parts, choice: Choice) -> Iterator[str]:
    """Yield a text in a machine format, given the parts of its sentences."""
    if chosen in ("json", "jsonl"):
        return write_array(parts) if chosen == "json" else write_each(parts)
    from attncli.formats.rows import write_csv, write_tsv  # which import NumPy

    return (write_csv if chosen == "csv" else write_tsv)(parts, tuple(_columns(choice)))


def write_parquet(parts: Parts, choice: Choice, path: Path) -> None:
    """Write the rows with types, of all sentences but those that failed.

    Raises:
        InputError: the file cannot be written.
    """
    from attncli.formats.parquet import write_parquet as write

    write(parts, _columns(choice), path)


def _tables(number: int, tokenization: Tokenization, choice: Choice) -> Iterator[Any]:
    import pyarrow

    from attncli.formats.parquet import typed, with_kept

    rows = pyarrow.Table.from_pylist(list(_records(number, tokenization, choice)), typed(_columns(choice)))
    yield with_kept(rows, tokenization.kept)


def _document(sentence: int, tokenization: Tokenization, choice: Choice) -> Iterator[str]:
    yield dumped({
        "schema": SCHEMA,
        "sentence": sentence,
        **metadata_json(tokenization.kept),
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


def _rows(number: int, tokenization: Tokenization, choice: Choice, chosen: str) -> Iterator[str]:
    """Yield the header, and then tidy rows; what is not known is an empty field."""
    from attncli.formats.rows import comma_separated, field, header

    join = comma_separated if chosen == "csv" else "\t".join
    columns = _columns(choice)
    yield header(columns, tokenization.kept, join)
    kept = [field(value) for value in tokenization.kept.values()]
    records = ([field(record[column]) for column in columns] for record in _records(number, tokenization, choice))
    yield "".join([join([first, *kept, *others]) + "\n" for first, *others in records])
