"""A tokenization as a person reads it: one line a token, with what is special, unknown, or part of a longer word."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import RenderableType
from rich.style import Style
from rich.text import Text

from attncli.render.block import Block, grid
from attncli.render.palette import BOLD, DIM, Palette
from attncli.tokenization import Choice, Tokenization
from attncli.tokens import Token, Word

_LONGEST = 200  # cells of a token, where the output sets no width
_LEFT_OVER = 40  # cells of a line, for what stands beside a token

Column = tuple[str, str, Callable[[Token], str]]  # its title, its alignment, its cell


def tokens_parts(
    tokenization: Tokenization, choice: Choice, palette: Palette, width: int | None
) -> Iterator[RenderableType]:
    """Yield what was tokenized by what, in numbers, and the tokens."""
    facts = "".join(f" · {fact}" for fact in _facts(tokenization))
    yield Text.assemble((palette.label(_title(tokenization)), BOLD), palette.fit(facts))
    shown = tokenization.shown(choice)
    if shown:
        yield _table(tokenization, shown, _columns(tokenization, shown, palette, width), width)


def _title(tokenization: Tokenization) -> str:
    if tokenization.vocab == "words":
        return "words of the text"
    return tokenization.model or tokenization.vocab or "tokens of a saved trace"


def _facts(tokenization: Tokenization) -> Iterator[str]:
    tokens, words = tokenization.tokens, tokenization.words
    at_most = "" if tokenization.limit is None else f" of at most {tokenization.limit:,}"
    yield _counted(len(tokens), "token") + at_most
    special = sum(token.special for token in tokens)
    if special:
        yield f"{special} special"
    if tokenization.unknown:
        yield f"{len(tokenization.unknown)} unknown"
    if words is not None and len(words) < len(tokens):
        yield _counted(sum(not word.special for word in words), "word")
    if tokenization.text:
        yield _counted(tokenization.characters, "character")


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' if count != 1 else ''}"


def _columns(
    tokenization: Tokenization, shown: Sequence[Token], palette: Palette, width: int | None
) -> Iterator[Column]:
    longest = _LONGEST if width is None else max(width - _LEFT_OVER, _LEFT_OVER) // 2

    def fitted(text: str) -> str:
        return palette.shortened(text, longest)

    def characters(token: Token) -> str:
        return "" if token.start is None or token.end is None else f"{token.start}:{token.end}"

    is_words = isinstance(shown[0], Word)
    yield "", ">", lambda token: str(token.index)
    if not is_words:
        yield "id", ">", lambda token: str(token.id)
    yield "word" if is_words else "token", "<", lambda token: fitted(token.label)
    if any(token.start is not None for token in shown):
        yield "characters", "<", characters
    if tokenization.pair is not None:
        yield "segment", ">", lambda token: str(token.segment)
    if is_words:
        yield "pieces", "<", lambda word: fitted(_pieces(tokenization, word))
    else:
        yield from _of_tokens(tokenization, shown, fitted)
    if any(token.special or tokenization.is_unknown(token) for token in shown):
        yield "", "<", lambda t: "unknown" if tokenization.is_unknown(t) else "special" if t.special else ""


def _of_tokens(tokenization: Tokenization, shown: Sequence[Token], fitted: Callable[[str], str]) -> Iterator[Column]:
    """Yield the columns that only some tokens have something to say in."""
    words = [word for word in tokenization.words or () if isinstance(word, Word)]
    if any(len(word.pieces) > 1 for word in words):
        spelled = {word.pieces[0]: f" {word.label}" for word in words if len(word.pieces) > 1}
        yield (
            "word",
            "<",
            lambda token: fitted(f"{tokenization.word_of(token)}{spelled.get(token.index, '')}"),
        )
    if any(_other_spelling(tokenization, token) for token in shown):
        yield "in the text", "<", lambda token: fitted(_other_spelling(tokenization, token))


def _other_spelling(tokenization: Tokenization, token: Token) -> str:
    """Return what stands in the text in the place of a token, where no spelling of the token says so.

    Capitals do not count: that a vocabulary has none is no surprise.
    """
    if token.special or token.start is None:
        return ""
    covered = (tokenization.text, tokenization.pair or "")[token.segment][token.start : token.end].strip()
    return "" if covered.lower() in {name.lower() for name in token.names} else covered


def _pieces(tokenization: Tokenization, word: Token) -> str:
    pieces = word.pieces if isinstance(word, Word) else ()
    labels = " ".join(tokenization.tokens[piece].label for piece in pieces)
    return f"{len(pieces)}  {labels}"


def _table(tokenization: Tokenization, shown: Sequence[Token], columns: Iterator[Column], width: int | None) -> Block:
    titles, aligns, cells = zip(*columns, strict=True)
    rows: list[list[tuple[str, Style | None]]] = [[(title, DIM) for title in titles]]
    for token in shown:
        style = BOLD if tokenization.is_unknown(token) else DIM if token.special else None
        rows.append([(cell(token), style) for cell in cells])
    return grid(rows, "".join(aligns), width)
