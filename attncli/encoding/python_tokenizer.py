"""Tokenizers in pure Python, called as an `InputEncoder` calls those that say where their pieces stand in the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from attncli.encoding.encode import TokenizerOutput

_Texts = tuple[str | None, str | None, str | None]  # a text, its pair and a target


class PythonTokenizer:
    """A tokenizer of transformers that runs in Python; what is not here is its own."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(
        self, text: str | None = None, pair: str | None = None, *, text_target: str | None = None, **how: Any
    ) -> TokenizerOutput:
        """Return what the model is given of a text and a second one, or of a target."""
        texts = text, pair, text_target
        inputs = dict(self._run(texts, how))
        ids = [int(each) for each in inputs["input_ids"]]
        pieces = [self._tokenizer.convert_ids_to_tokens(id_) for id_ in ids]
        segments = list(self._segments(ids, texts, how))
        encoding = SimpleNamespace(
            ids=ids,
            tokens=[f"<id {id_}>" if piece is None else str(piece) for id_, piece in zip(ids, pieces, strict=True)],
            offsets=[(None, None)] * len(ids),
            special_tokens_mask=[segment is None for segment in segments],
            sequence_ids=segments,
            word_ids=[None] * len(ids),
        )
        return TokenizerOutput(inputs, encoding)

    def _run(self, texts: Sequence[Any], how: dict[str, Any]) -> Any:
        text, pair, target = texts
        return self._tokenizer(text, pair, **how) if target is None else self._tokenizer(text_target=target, **how)

    def _segments(self, ids: list[int], texts: _Texts, how: dict[str, Any]) -> Iterator[int | None]:
        """Yield which text each token is from; None is one that the tokenizer adds.

        Its own mask of special tokens is right only where its class has thought of one. So it is given the ids of the
        texts once more, as numbers that can be told from those that it adds, and asked to put its own around them.
        """
        bare = how | {"add_special_tokens": False, "truncation": False, "max_length": None}
        parts: list[list[_IdOfText] | None] = [None] * 3
        for place, each in enumerate(texts):
            if each:
                alone = (None, None, each) if place == 2 else (each, None, None)
                parts[place] = [_IdOfText(id_, place % 2) for id_ in self._run(alone, bare)["input_ids"]]
        around: list[int] = []
        if [] not in parts:  # which would be taken for a batch of none
            with suppress(Exception):  # of a class that takes no ids
                around = list(self._run(parts, how)["input_ids"])
        if around == ids and any(isinstance(each, _IdOfText) for each in around):
            yield from (each.segment if isinstance(each, _IdOfText) else None for each in around)
        elif texts[1] is not None:
            raise ValueError("its tokenizer does not say which of two texts a token is of; drop --pair")
        else:
            special = set(self._tokenizer.all_special_ids)
            yield from (None if each in special else 0 for each in ids)


class _IdOfText(int):
    """The id of a piece of a text, and which text: 0, or 1 for a pair. The tokenizer's own are plain numbers."""

    segment: int

    def __new__(cls, id_: int, segment: int) -> _IdOfText:
        self = super().__new__(cls, id_)
        self.segment = segment
        return self
