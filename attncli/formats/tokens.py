"""The JSON document of tokens, schema `attncli.tokens/1`."""

from __future__ import annotations

from collections.abc import Iterator

from attncli.errors import metadata_json
from attncli.formats.answers import dumped
from attncli.trace.tokenization import SCHEMA, Choice, Tokenization


def document(sentence: int, tokenization: Tokenization, choice: Choice) -> Iterator[str]:
    """Yield the document of a sentence's tokens."""
    yield dumped({
        "schema": SCHEMA,
        "sentence": sentence,
        **metadata_json(tokenization.metadata),
        "source": {name: getattr(tokenization, name) for name in ("kind", "model", "vocab")},
        "text": tokenization.text,
        "pair": tokenization.pair,
        "length": len(tokenization.tokens),
        "limit": tokenization.limit,
        "tokens": list(tokenization.as_dicts(choice)),
    })  # fmt: skip
