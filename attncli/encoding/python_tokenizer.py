"""Tokenizers in pure Python, called as an `InputEncoder` calls those that say where their pieces stand in the text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

_Texts = tuple[str | None, str | None, str | None]  # a text, its pair and a target


class Pieces(NamedTuple):
    """What is known of a text's tokens; see `tokenizers.Encoding`."""

    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[None, None]]
    special_tokens_mask: list[bool]
    sequence_ids: list[int | None]
    word_ids: list[None]


class Encoded(dict[str, list[int]]):
    """What a model is given of a text.

    Attributes:
        encodings: one, with the tokens.
    """

    def __init__(self, inputs: dict[str, list[int]], pieces: Pieces) -> None:
        super().__init__(inputs)
        self.encodings = [pieces]


class PythonTokenizer:
    """A tokenizer of transformers that runs in Python; what is not here is its own."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(
        self, text: str | None = None, pair: str | None = None, *, text_target: str | None = None, **how: Any
    ) -> Encoded:
        """Return what the model is given of a text and a second one, or of a target."""
        inputs = dict(self._run(text, pair, text_target, how))
        ids = [int(each) for each in inputs["input_ids"]]
        segments = list(self._segments(ids, (text, pair, text_target), how))
        return Encoded(
            inputs,
            Pieces(
                ids,
                [self._piece(each) for each in ids],
                [(None, None)] * len(ids),
                [segment is None for segment in segments],
                segments,
                [None] * len(ids),
            ),
        )

    def _run(self, text: Any, pair: Any, target: Any, how: dict[str, Any]) -> Any:
        return self._tokenizer(text, pair, **how) if target is None else self._tokenizer(text_target=target, **how)

    def _piece(self, id_: int) -> str:
        piece = self._tokenizer.convert_ids_to_tokens(id_)
        return f"<id {id_}>" if piece is None else str(piece)

    def _segments(self, ids: list[int], texts: _Texts, how: dict[str, Any]) -> Iterator[int | None]:
        """Yield which text each token is from; None is one that the tokenizer adds.

        Its own mask of special tokens is right only where its class has thought of one. So it is given the ids of the
        texts once more, as numbers that can be told from those that it adds, and asked to put its own around them.
        """
        bare = how | {"add_special_tokens": False, "truncation": False, "max_length": None}
        text, pair, target = texts
        own = (
            text and self._own(self._run(text, None, None, bare), 0),
            pair and self._own(self._run(pair, None, None, bare), 1),
            target and self._own(self._run(None, None, target, bare), 0),
        )
        around: list[int] = []
        if [] not in own:  # which would be taken for a batch of none
            with suppress(Exception):  # of a class that takes no ids
                around = list(self._run(*own, how)["input_ids"])
        if around == ids and any(isinstance(each, _Own) for each in around):
            yield from (each.segment if isinstance(each, _Own) else None for each in around)
        elif pair is not None:
            raise ValueError("its tokenizer does not say which of two texts a token is of; drop --pair")
        else:
            special = set(self._tokenizer.all_special_ids)
            yield from (None if each in special else 0 for each in ids)

    def _own(self, inputs: Any, segment: int) -> list[_Own]:
        return [_Own(id_, segment) for id_ in inputs["input_ids"]]


class _Own(int):
    """The id of a piece of a text; the tokenizer's own are plain numbers."""

    segment: int

    def __new__(cls, id_: int, segment: int) -> _Own:
        self = super().__new__(cls, id_)
        self.segment = segment
        return self
