"""Tokens of one sentence without its attention, and its words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attncli.errors import Metadata, UsageError
from attncli.text import plural, quoted
from attncli.trace.display import Displayed
from attncli.trace.tokens import Token, Tokens

if TYPE_CHECKING:
    from attncli.trace.trace import Trace

SCHEMA = "attncli.tokens/1"


@dataclass(frozen=True)
class Tokenization(Displayed):
    """Tokens of one sentence; a notebook shows them as `attn tokens` does."""

    kind: str  # `toy`, `pretrained`, or the kind of the saved trace
    model: str | None  # the checkpoint
    vocab: str | None  # the toy layer's vocabulary
    text: str  # the sentence
    pair: str | None  # the second text of the same sequence
    tokens: Tokens  # in order, special ones included
    limit: int | None = None  # the most tokens that the model reads; None is no limit, or no known one
    unknown: frozenset[int] | None = None  # indices of tokens that are not in the vocabulary; None is not known
    notes: tuple[str, ...] = ()  # remarks for the user, a sentence each
    metadata: Metadata = field(default_factory=dict)  # further fields of its sentence in the file, by names

    def __repr__(self) -> str:
        source = self.model or self.vocab or self.kind
        return f"Tokenization({quoted(self.text)}, {source}, {plural(len(self.tokens), 'token')})"

    @property
    def characters(self) -> int:
        """Number of tokenized characters."""
        return len(self.text) + len(self.pair or "")

    @cached_property
    def words(self) -> Tokens | None:
        """The words of the text, as `attn inspect --words` merges and numbers them; None where no token has a place."""
        try:
            return words_of(self.tokens, self.text, self.pair)[0]
        except UsageError:
            return None

    def word_of(self, token: Token) -> int | None:
        """Return the index of the word that a token is in; None where words are not known."""
        return self._word_of.get(token.index)

    def is_unknown(self, token: Token) -> bool | None:
        """Return whether a token is not in the vocabulary; None where that is not known."""
        return None if self.unknown is None else token.index in self.unknown

    def as_dicts(self) -> Iterator[dict[str, Any]]:
        """Yield the tokens as in the JSON document."""
        for token in self.tokens:
            yield {**token.as_dict(), "word": self.word_of(token), "unknown": self.is_unknown(token)}

    @cached_property
    def _word_of(self) -> dict[int, int]:
        return {piece: word.index for word in self.words or () for piece in word.pieces}


def tokenizations_in(trace: Trace) -> Iterator[Tokenization]:
    """Yield the tokens of a trace, and those of its target if it has one besides a text."""
    from attncli.trace.trace import texts_of  # it imports NumPy, which the tokens of a text do not need

    origin = (trace.source.kind, trace.source.model, None)
    _, of_keys = texts_of(trace.text, trace.pair, trace.target)
    yield Tokenization(*origin, *of_keys, trace.key_tokens)
    if trace.target is not None and trace.text:
        yield Tokenization(*origin, trace.target, None, trace.query_tokens)


def words_of(tokens: Tokens, text: str, pair: str | None) -> tuple[Tokens, bool]:
    """Return the words of a text, and whether they are the tokenizer's own; UsageError where tokens lack offsets.

    Where the tokenizer splits nothing into words, or its words hold spaces, pieces that touch in the text are one word.
    A special token is a word of its own.
    """
    texts = (text, pair or "")
    if any(not token.special and None in (token.start, token.end) for token in tokens):
        raise UsageError("--words needs the position of each token in the text, which this trace lacks")
    words = _words(tokens, texts, lambda previous, token: previous.word == token.word)
    is_split = all(token.special or token.word is not None for token in tokens)
    is_own = is_split and not any(word.text.split()[1:] for word in words)
    if not is_own:
        words = _words(tokens, texts, lambda previous, token: _are_joined(previous, token, texts[token.segment]))
    first: dict[tuple[int, ...], int] = {}
    ids = [first.setdefault(tuple(tokens[piece].id for piece in word.pieces), i) for i, word in enumerate(words)]
    return Tokens(replace(word, index=index, id=ids[index]) for index, word in enumerate(words)), is_own


def _are_joined(previous: Token, token: Token, text: str) -> bool:
    """Return whether two pieces touch: no space between them, nor at the front of the second."""
    start = token.start or 0
    return not any(character.isspace() for character in text[previous.end : start] + text[start : token.end][:1])


def _words(tokens: Tokens, texts: Sequence[str], continues: Callable[[Token, Token], bool]) -> list[Token]:
    groups: list[list[Token]] = []
    for token in tokens:
        previous = groups[-1][-1] if groups else token
        both_text = groups and not token.special and not previous.special and token.segment == previous.segment
        if both_text and continues(previous, token):
            groups[-1].append(token)
        else:
            groups.append([token])
    return [_word(group, texts) for group in groups]


def _word(pieces: Sequence[Token], texts: Sequence[str]) -> Token:
    first = pieces[0]
    ends = [piece.end for piece in pieces if piece.end is not None]
    covered = texts[first.segment][first.start : max(ends)] if first.start is not None and ends else first.text
    indices, end = tuple(piece.index for piece in pieces), max(ends, default=None)
    spelling = covered.strip() or covered or first.text
    return Token(0, 0, spelling, first.start, end, first.special, first.segment, pieces=indices)
