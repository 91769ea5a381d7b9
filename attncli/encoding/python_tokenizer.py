"""Tokenizers in pure Python, called as an `InputEncoder` calls those that say where their pieces stand in the text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from attncli.encoding.encode import TokenizerOutput


class PythonTokenizer:
    """A tokenizer of transformers that runs in Python; what is not here is its own."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, *texts: str | None, **how: Any) -> TokenizerOutput:
        """Return what the model is given of a text, or of a target (`text_target`)."""
        if any(text is not None for text in texts[1:]):
            raise ValueError("its tokenizer does not say which of two texts a token is of; drop --pair")
        inputs = dict(self._tokenizer(*texts[:1], **how))
        ids = [int(each) for each in inputs["input_ids"]]
        pieces = [self._tokenizer.convert_ids_to_tokens(id_) for id_ in ids]
        before, behind = self._added(texts[:1], how | {"truncation": False, "max_length": None})
        is_own = [before <= index < len(ids) - behind for index in range(len(ids))]
        encoding = SimpleNamespace(
            ids=ids,
            tokens=[f"<id {id_}>" if piece is None else str(piece) for id_, piece in zip(ids, pieces, strict=True)],
            offsets=[(None, None)] * len(ids),
            special_tokens_mask=[not each for each in is_own],
            sequence_ids=[0 if each else None for each in is_own],
            word_ids=[None] * len(ids),
        )
        return TokenizerOutput(inputs, encoding)

    def _added(self, texts: tuple[str | None, ...], how: dict[str, Any]) -> tuple[int, int]:
        """Return how many tokens the tokenizer puts before a text, and behind it."""
        ids, own = (
            list(self._tokenizer(*texts, **how | {"add_special_tokens": adds})["input_ids"])
            for adds in (how["add_special_tokens"], False)
        )
        before = next((start for start in range(len(ids)) if ids[start : start + len(own)] == own), 0)
        return before, max(len(ids) - before - len(own), 0)
