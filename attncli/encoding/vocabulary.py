"""Vocabularies of the toy layer: the words of the document itself, or a trained tokenizer's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attncli.errors import InputError, InputMismatchError, LoadError, UsageError, is_panic, require
from attncli.text import visible
from attncli.trace.tokens import Token, Tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Vocabulary(Protocol):
    """Turns texts into tokens with the ids of a vocabulary."""

    size: int

    def encode(self, text: str, pair: str | None) -> Tokens:
        """Return the tokens of a text, and of a second one in the same sequence."""

    def unknown_pieces(self, tokens: Tokens) -> dict[int, str]:
        """Return the ids of these tokens that stand for what the vocabulary lacks, and the pieces of these ids."""


class WordVocabulary:
    """The words of the document itself, sorted."""

    def __init__(self, texts: Iterable[str], size: int | None) -> None:
        words = sorted({word for text in texts for word, _ in _split(text)})
        self._ids = {word: index for index, word in enumerate(words)}
        self.size = size or len(words)
        if self.size < len(words):
            raise InputMismatchError(
                f"--vocab-size {size}: the text has {len(words)} different words; give at least that"
            )

    def encode(self, text: str, pair: str | None) -> Tokens:
        """See `Vocabulary.encode`."""
        pieces = [(0, *piece) for piece in _split(text)]
        if pair is not None:
            pieces += [(1, *piece) for piece in _split(pair)]
        # From a list: a tuple of a generator has not the size that CPython will look for a freed one of, and those of a
        # stream of sentences pile up.
        return Tokens(
            [
                Token(index, self._ids[word], word, start, end, segment=segment, word=index)
                for index, (segment, word, (start, end)) in enumerate(pieces)
            ]
        )

    def unknown_pieces(self, tokens: Tokens) -> dict[int, str]:
        """Return nothing: the vocabulary is made of these words."""
        return {}


def _split(text: str) -> list[tuple[str, tuple[int, int]]]:
    """Return the words of a text and its runs of other signs, with their places, as tokenizers' `Whitespace` does."""
    if text.isascii():  # where Python's classes of characters are those of the library, which takes 8 MB to import
        return [(found[0], found.span()) for found in re.finditer(r"\w+|[^\w\s]+", text, re.ASCII)]
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
            raise UsageError(f"--vocab-size {size}: the tokenizer has {needed} tokens; give at least that")

    def encode(self, text: str, pair: str | None) -> Tokens:
        """See `Vocabulary.encode`."""
        with translate_tokenizer_errors():
            encoding = self._tokenizer.encode(text, pair, add_special_tokens=self._special)
        return tokens_of(encoding, text, pair)

    def unknown_pieces(self, tokens: Tokens) -> dict[int, str]:
        """See `Vocabulary.unknown_pieces`."""
        tokenizer = self._tokenizer
        unknown = getattr(tokenizer.model, "unk_token", None)
        if unknown is not None:
            id_ = tokenizer.token_to_id(unknown)
            return {} if id_ is None else {id_: unknown}
        # Unigram does not tell its unknown token, but gives its id to pieces that are spelt otherwise.
        pieces = {token: str(tokenizer.id_to_token(token.id)) for token in tokens}
        return {token.id: piece for token, piece in pieces.items() if piece != token.text}


@contextmanager
def translate_tokenizer_errors() -> Iterator[None]:
    """Refuse a text that a tokenizer cannot read.

    Raises:
        InputError: it cannot.
    """
    try:
        yield
    except BaseException as error:  # the library raises bare Exception, for a word without an unknown token
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise InputError(f"the tokenizer cannot read the text: {visible(str(error))}") from None


def unknown_tokens(texts: tuple[str, str | None], tokens: Tokens, pieces: Mapping[int, str]) -> dict[Token, str]:
    """Return the tokens that stand for what the vocabulary lacks, with what each of them stands for, as far as known.

    Args:
        texts: the text and the second one of a pair.
        tokens: their tokens.
        pieces: see `Vocabulary.unknown_pieces`. What the text itself spells like its piece is not unknown.
    """
    lost = (token for token in tokens if token.id in pieces and not token.special)
    words = {token: _word(texts[token.segment] or "", token, pieces[token.id]) for token in lost}
    return {token: word for token, word in words.items() if word != pieces[token.id]}


def _word(text: str, token: Token, piece: str) -> str:
    """Return what the text has in the place of an unknown token; nothing where its place is not known."""
    if token.start is None:
        return piece if piece in text else ""
    return text[token.start : token.end]


def unknown_notes(texts: tuple[str, str | None], tokens: Tokens, pieces: Mapping[int, str]) -> tuple[str, ...]:
    """Return a sentence about the words that the vocabulary lacks, for each piece; see `unknown_tokens`."""
    lost = unknown_tokens(texts, tokens, pieces)
    notes = []
    for id_ in dict.fromkeys(token.id for token in lost):
        named = (
            f"'{visible(word)}'" if word else "some of the text" for token, word in lost.items() if token.id == id_
        )
        words = ", ".join(dict.fromkeys(named))
        notes.append(
            f"the model's vocabulary lacks {words}, read as {pieces[id_]}; attention there is to the unknown token"
        )
    return tuple(notes)


def tokens_of(encoding: Any, text: str, pair: str | None = None) -> Tokens:
    """Return the tokens of one `tokenizers.Encoding` of a text, and of a second one in the same sequence.

    Raises:
        InputError: there are none.
    """
    from attncli.trace.byte_pieces import decode_pieces

    if not encoding.ids:
        raise InputError("the tokenizer made no token of the text; expected at least one")
    tokens = []
    segment = 0
    rows = zip(
        encoding.ids,
        encoding.tokens,
        encoding.offsets,
        encoding.special_tokens_mask,
        encoding.sequence_ids,
        encoding.word_ids,
        strict=True,
    )
    for index, (id_, piece, (start, end), special, sequence, word) in enumerate(rows):
        if sequence is not None:
            segment = sequence  # a separator belongs to the text it closes
        start, end = (None, None) if special else (start, end)
        word = None if special else word
        tokens.append(Token(index, id_, piece, start, end, bool(special), segment, word))
    return decode_pieces(tokens, text, pair)


def open_vocabulary(vocab: str, special: bool, offline: bool) -> Tokenizer | None:
    """Load the tokenizer that `--vocab` names; None stands for `words`, the vocabulary made of each document.

    Raises:
        UsageError: an option does not apply to `words`.
        LoadError: see `load_tokenizer`.
    """
    if vocab != "words":
        return load_tokenizer(vocab, offline)
    if offline:
        raise UsageError("--offline does not apply to --vocab words, for which nothing is looked up")
    if not special:
        raise UsageError("--no-special does not apply to --vocab words, which adds no special tokens")
    return None


def load_tokenizer(name: str, offline: bool) -> Tokenizer:
    """Load a tokenizer from a tokenizer.json, a folder that holds one, or the hub.

    Raises:
        LoadError: there is none, or it cannot be read.
    """
    from attncli.checkpoints.folder import check_name, opened

    path = Path(opened(name))
    shown = visible(name)
    check_name(path)
    if os.path.isdir(path):
        path = path / "tokenizer.json"
    elif not os.path.exists(path):
        path = _tokenizer_from_hub(name, offline)
    if not os.path.isfile(path):
        raise LoadError(f"--vocab '{shown}' holds no tokenizer.json; give words, a tokenizer.json or its folder")
    tokenizer = tokenizer_in(path, f"--vocab '{shown}'")
    # Some files carry the padding and truncation of their training.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def tokenizer_in(path: Path, whose: str) -> Tokenizer:
    """Read a tokenizer.json.

    Raises:
        LoadError: it cannot be read; the sentence begins with whose it is.
    """
    from tokenizers import Tokenizer

    from attncli.encoding.vocabulary_files import check_vocabulary

    try:
        check_vocabulary(path)
        return Tokenizer.from_file(str(path))
    except BaseException as error:  # the library raises bare Exception
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise LoadError(f"{whose}: tokenizer.json cannot be read: {visible(str(error))}") from None


def _tokenizer_from_hub(name: str, offline: bool) -> Path:
    require(f"--vocab '{visible(name)}' is no file or folder here. A look on the hub", "huggingface_hub")
    from attncli.checkpoints.hub import first_sentence, hush_hub, silence, unreached

    hush_hub()
    from huggingface_hub import hf_hub_download

    silent = None if offline else silence()
    try:
        return Path(hf_hub_download(name, "tokenizer.json", local_files_only=offline or silent is not None))
    except Exception as error:  # network, authentication, names: a sentence for each is in the error
        if why := silent or unreached(error):
            raise LoadError(
                f"the hub could not be reached, and --vocab '{visible(name)}' is no file or folder here and not in "
                f"the local cache; check the connection ({why})"
            ) from None
        why = first_sentence(error)
        raise LoadError(f"--vocab '{visible(name)}' is no file or folder here and not on the hub: {why}") from None
