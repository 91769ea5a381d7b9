"""A tokenization as a person reads it: one line a token, with what is special, unknown, or part of a longer word."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from rich.console import RenderableType
from rich.text import Text

from attncli.render.block import Block, Column, shortened, table, width_of
from attncli.render.palette import BOLD, DIM, Palette
from attncli.text import plural, short_name, visible
from attncli.trace.tokenization import Tokenization
from attncli.trace.tokens import Token

_LONGEST = (200, 60, 30, 20, 12)  # cells of a word, of which the first that fits on a line is taken


def tokens_parts(tokenization: Tokenization, palette: Palette, width: int | None) -> Iterator[RenderableType]:
    """Yield what was tokenized by what, in numbers, and the tokens."""
    facts = "".join(f" · {fact}" for fact in _facts(tokenization))
    yield Text.assemble((visible(_title(tokenization)), BOLD), facts)
    if tokenization.tokens:
        yield _table(tokenization, palette, width)


def _title(tokenization: Tokenization) -> str:
    if tokenization.vocab == "words":
        return "words of the text"
    model = tokenization.model and short_name(tokenization.model)
    return model or tokenization.vocab or "tokens of a saved trace"


def _facts(tokenization: Tokenization) -> Iterator[str]:
    tokens, words = tokenization.tokens, tokenization.words
    at_most = "" if tokenization.limit is None else f" of at most {tokenization.limit:,}"
    yield plural(len(tokens), "token") + at_most
    special = sum(token.special for token in tokens)
    if special:
        yield f"{special} special"
    if tokenization.unknown:
        yield f"{len(tokenization.unknown)} unknown"
    if words is not None and len(words) < len(tokens):
        yield plural(sum(not word.special for word in words), "word")
    if tokenization.text:
        yield plural(tokenization.characters, "character")


def _table(tokenization: Tokenization, palette: Palette, width: int | None) -> Block:
    """Return a line for each token; words are shortened only as far as it takes to keep the columns side by side."""
    for longest in _LONGEST:
        columns = list(_columns(tokenization, longest))
        if width is None or width_of(columns) - 2 <= width:
            break
    return table(columns, width, palette)


def _columns(tokenization: Tokenization, longest: int) -> Iterator[Column]:
    """Yield the columns that have a value for some token."""
    shown = tokenization.tokens
    styles = [BOLD if tokenization.is_unknown(token) else DIM if token.special else None for token in shown]
    fitted, column = partial(shortened, width=longest), partial(Column, style=styles)
    yield column("", [str(token.index) for token in shown])
    yield column("id", [str(token.id) for token in shown])
    yield column("token", [fitted(token.label) for token in shown], align="<")
    if any(token.start is not None for token in shown):
        places = ["" if token.start is None else f"{token.start}:{token.end}" for token in shown]
        yield column("characters", places, align="<")
    if tokenization.pair is not None:
        yield column("segment", [str(token.segment) for token in shown])
    if spelled := _longer_words(tokenization):
        words = [fitted(f"{tokenization.word_of(token)}{spelled.get(token.index, '')}") for token in shown]
        yield column("word", words, align="<")
    if any(remarks := [fitted(_remark(tokenization, token)) for token in shown]):
        yield column("", remarks, align="<")


def _longer_words(tokenization: Tokenization) -> dict[int, str]:
    words = tokenization.words or ()
    return {word.pieces[0]: f" {word.label}" for word in words if len(word.pieces) > 1}


def _remark(tokenization: Tokenization, token: Token) -> str:
    """Return what is odd about a token: the text has no such piece, or another one, but for its capitals."""
    if token.special:
        return "special"
    if token.start is None:
        return "unknown" if tokenization.is_unknown(token) else ""
    covered = (tokenization.text, tokenization.pair or "")[token.segment][token.start : token.end].strip()
    if tokenization.is_unknown(token):
        return f"unknown: {covered}"
    return "" if not covered or covered.lower() in {name.lower() for name in token.names} else f"text: {covered}"
