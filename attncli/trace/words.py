"""Words of a text, made of its pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from attncli.errors import UsageError
from attncli.trace.tokens import Token, Tokens


def words_of(tokens: Tokens, text: str, pair: str | None) -> tuple[Tokens, bool]:
    """Return the words of a text, and whether they are the tokenizer's own.

    A tokenizer that splits a text into words before pieces gives the word of each piece. Where it splits nothing, or
    where words hold spaces, pieces that touch in the text are one word. A special
    token is a word of its own.

    Raises:
        UsageError: no token has an offset in the text.
    """
    texts = (text, pair or "")
    if any(not token.special and (token.start is None or token.end is None) for token in tokens):
        raise UsageError("--words needs the position of each token in the text, which this trace lacks")
    split = [_word(group, texts) for group in _grouped(tokens, lambda previous, token: previous.word == token.word)]
    knows_words = all(token.special or token.word is not None for token in tokens)
    is_own = knows_words and not any(word.text.split()[1:] for word in split)
    words = split if is_own else [_word(group, texts) for group in _grouped(tokens, _touching(texts))]
    first: dict[tuple[int, ...], int] = {}
    numbered = []
    for index, word in enumerate(words):
        id_ = first.setdefault(tuple(tokens[piece].id for piece in word.pieces), index)
        numbered.append(replace(word, index=index, id=id_))
    return Tokens(numbered), is_own


def _grouped(tokens: Tokens, continues: Callable[[Token, Token], bool]) -> list[list[Token]]:
    groups: list[list[Token]] = []
    for token in tokens:
        previous = groups[-1][-1] if groups else token
        both_text = groups and not token.special and not previous.special and token.segment == previous.segment
        if both_text and continues(previous, token):
            groups[-1].append(token)
        else:
            groups.append([token])
    return groups


def _touching(texts: Sequence[str]) -> Callable[[Token, Token], bool]:
    """Return a test of whether two pieces touch: no space between them, nor at the front of the second."""

    def touches(previous: Token, token: Token) -> bool:
        text, start = texts[token.segment], token.start or 0
        return not any(character.isspace() for character in text[previous.end : start] + text[start : token.end][:1])

    return touches


def _word(pieces: Sequence[Token], texts: Sequence[str]) -> Token:
    first = pieces[0]
    ends = [piece.end for piece in pieces if piece.end is not None]
    covered = texts[first.segment][first.start : max(ends)] if first.start is not None and ends else first.text
    spelling = covered.strip() or covered or first.text
    return Token(
        index=0,
        id=0,
        text=spelling,
        start=first.start,
        end=max(ends, default=None),
        special=first.special,
        segment=first.segment,
        pieces=tuple(piece.index for piece in pieces),
    )
