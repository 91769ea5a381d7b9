"""Words of a text, made of its pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from attncli.errors import UsageError
from attncli.trace.tokens import Token, Tokens


def words_of(tokens: Tokens, text: str, pair: str | None) -> tuple[Tokens, bool]:
    """Return the words of a text, and whether they are the tokenizer's own.

    Where the tokenizer splits nothing into words, or its words hold spaces, pieces that touch in the text are one word.
    A special token is a word of its own.

    Raises:
        UsageError: no token has an offset in the text.
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
