"""The vocabulary of the toy layer: the words of the document itself."""

from __future__ import annotations

import re
from collections.abc import Iterable

from attncli.errors import InputMismatchError
from attncli.trace.tokens import Token, Tokens


class WordVocabulary:
    """The words of the document itself, sorted."""

    def __init__(self, texts: Iterable[str | None], size: int | None = None) -> None:
        words = sorted({word for text in texts for word, _ in _split(text or "")})
        self._ids = {word: index for index, word in enumerate(words)}
        self.size = size or len(words)
        if self.size < len(words):
            why = f"the text has {len(words)} different words"
            raise InputMismatchError(f"--vocab-size {size}: {why}; give at least as many")

    def encode(self, text: str, pair: str | None = None) -> Tokens:
        """Return the tokens of a text, and of a second one in the same sequence."""
        pieces = [(segment, *piece) for segment, content in enumerate((text, pair or "")) for piece in _split(content)]
        # From a list: CPython keeps freed tuples of generators, which pile up in a stream of sentences.
        return Tokens([
            Token(index, self._ids[word], word, start, end, segment=segment, word=index)
            for index, (segment, word, (start, end)) in enumerate(pieces)
        ])  # fmt: skip


def _split(text: str) -> list[tuple[str, tuple[int, int]]]:
    """Return the words of a text and its runs of other signs, with their places, as tokenizers' `Whitespace` does."""
    if text.isascii():  # where Python's classes of characters are those of the library, which takes 8 MB to import
        return [(match[0], match.span()) for match in re.finditer(r"\w+|[^\w\s]+", text, re.ASCII)]
    from tokenizers.pre_tokenizers import Whitespace

    return Whitespace().pre_tokenize_str(text)
