"""Vocabularies of the toy layer: the words of the document itself, or a trained tokenizer's."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attncli.encoding.encode import tokens_of, translate_tokenizer_errors
from attncli.errors import InputMismatchError, LoadError, UsageError
from attncli.text import visible
from attncli.trace.tokens import Token, Tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class WordVocabulary:
    """The words of the document itself, sorted."""

    def __init__(self, texts: Iterable[str], size: int | None) -> None:
        words = sorted({word for text in texts for word, _ in _split(text)})
        self._ids = {word: index for index, word in enumerate(words)}
        self.size = size or len(words)
        if self.size < len(words):
            why = f"the text has {len(words)} different words"
            raise InputMismatchError(f"--vocab-size {size}: {why}; give at least as many")

    def encode(self, text: str, pair: str | None) -> Tokens:
        """Return the tokens of a text, and of a second one in the same sequence."""
        pieces = [(segment, *piece) for segment, content in enumerate((text, pair or "")) for piece in _split(content)]
        # From a list: CPython keeps freed tuples of generators, which pile up in a stream of sentences.
        return Tokens([
            Token(index, self._ids[word], word, start, end, segment=segment, word=index)
            for index, (segment, word, (start, end)) in enumerate(pieces)
        ])  # fmt: skip

    def unknown_pieces(self, tokens: Tokens) -> dict[int, str]:
        """Return nothing: the vocabulary is made of these words."""
        return {}


def _split(text: str) -> list[tuple[str, tuple[int, int]]]:
    """Return the words of a text and its runs of other signs, with their places, as tokenizers' `Whitespace` does."""
    if text.isascii():  # where Python's classes of characters are those of the library, which takes 8 MB to import
        return [(match[0], match.span()) for match in re.finditer(r"\w+|[^\w\s]+", text, re.ASCII)]
    from tokenizers.pre_tokenizers import Whitespace

    return Whitespace().pre_tokenize_str(text)


class TokenizerVocabulary:
    """A trained tokenizer's own vocabulary."""

    def __init__(self, tokenizer: Tokenizer, special: bool, size: int | None) -> None:
        self._tokenizer = tokenizer
        self._special = special
        needed = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0) + 1
        self.size = size or needed
        if self.size < needed:
            raise UsageError(f"--vocab-size {size}: the tokenizer has {needed} tokens; give at least as many")

    def encode(self, text: str, pair: str | None) -> Tokens:
        """Return the tokens of a text, and of a second one in the same sequence."""
        with translate_tokenizer_errors():
            encoding = self._tokenizer.encode(text, pair, add_special_tokens=self._special)
        return tokens_of(encoding, text, pair)

    def unknown_pieces(self, tokens: Tokens) -> dict[int, str]:
        """Return the unknown ids among these tokens, and their pieces."""
        tokenizer = self._tokenizer
        unknown = getattr(tokenizer.model, "unk_token", None)
        if unknown is not None:
            id_ = tokenizer.token_to_id(unknown)
            return {} if id_ is None else {id_: unknown}
        # Unigram does not name its unknown token, but gives its id to pieces that are spelt otherwise.
        pieces = ((token, str(tokenizer.id_to_token(token.id))) for token in tokens)
        return {token.id: piece for token, piece in pieces if piece != token.text}


Vocabulary = WordVocabulary | TokenizerVocabulary


def open_vocabulary(
    vocab: str, special: bool, offline: bool, size: int | None = None
) -> Callable[[Sequence[str | None]], Vocabulary]:
    """Return a function that makes the vocabulary of a document: that of a tokenizer, or its own words.

    Raises:
        UsageError: an option does not apply to `words`; or the tokenizer has more ids.
        LoadError: there is no such tokenizer, or it cannot be read.
    """
    if vocab != "words":
        trained = TokenizerVocabulary(_load_tokenizer(vocab, offline), special, size)
        return lambda _: trained
    if offline:
        raise UsageError("--offline does not apply to --vocab words, which needs no download")
    if not special:
        raise UsageError("--no-special does not apply to --vocab words, which adds no special tokens")
    return lambda texts: WordVocabulary([text for text in texts if text is not None], size)


def _load_tokenizer(name: str, offline: bool) -> Tokenizer:
    """Load a tokenizer from a tokenizer.json, a folder that holds one, or the hub."""
    from attncli.checkpoints.checkpoint_folder import check_utf8
    from attncli.encoding.fast_tokenizer import read_tokenizer

    path = Path(name)
    check_utf8(path)
    if not os.path.isfile(path):
        from attncli.checkpoints.options import LoadOptions
        from attncli.checkpoints.snapshot import resolve

        path = resolve(name, LoadOptions(offline=offline), for_tokenizer=True).tokenizer.path / "tokenizer.json"
        if not os.path.isfile(path):
            raise LoadError(f"--vocab '{visible(name)}' holds no tokenizer.json; give words, or the file's folder")
    tokenizer = read_tokenizer(path, f"--vocab '{visible(name)}'")
    # Some files carry the padding and truncation of their training.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
