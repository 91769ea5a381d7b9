"""Tokens: what the model reads, where each piece stands in the text, and how it is shown safely."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Any

from attncli.errors import InputMismatchError
from attncli.text import JOINERS, did_you_mean, visible

# How vocabularies write "a space stands before this piece": byte-level BPE and SentencePiece.
_SPACE_MARKS = ("\u0120", "\u2581")
_WORD_PIECE = "##"


def brief(message: str) -> str:
    """Return a message, without its middle if it is long: it may quote a file or a user at any length."""
    most = 2000
    return message if len(message) <= most else f"{message[: most - 500]} … {message[-500:]}"


def _unmarked(text: str) -> str:
    return text.lstrip("".join(_SPACE_MARKS))


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a sequence.

    Attributes:
        index: place in the sequence, from 0.
        id: row of the vocabulary.
        text: the piece as the vocabulary spells it (`##ing`, `Ġflies`).
        start: first character of the piece in the text, or None for a token that the text does not hold, or where the
            tokenizer does not say.
        end: one past its last character, or None.
        special: whether the tokenizer added it ([CLS], <s>, …), or the model itself, or the chat template wrote it.
        segment: 0 for the text, 1 for the second text of a pair.
        word: which word of its text the tokenizer's own splitting puts it into; None where it does not say.
        shown: the piece as the text spells it, where the vocabulary spells it byte by byte.
        pieces: of a word, the indices of its tokens, which follow each other. Its text is what stands in the text, and
            its id is no row of a vocabulary, but the first word of the same pieces.
    """

    index: int
    id: int
    text: str
    start: int | None
    end: int | None
    special: bool = False
    segment: int = 0
    word: int | None = None
    shown: str | None = None
    pieces: tuple[int, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the token as the JSON document spells it."""
        written: dict[str, Any] = {
            "index": self.index,
            "id": self.id,
            "text": self.text,
            "start": self.start,
            "end": self.end,
            "special": self.special,
            "segment": self.segment,
        }
        return {**written, "id": None, "pieces": list(self.pieces)} if self.pieces else written

    @property
    def below(self) -> str:
        """What stands below the token in a list of tokens: its id, or the indices of its pieces."""
        if not self.pieces:
            return str(self.id)
        first, last = self.pieces[0], self.pieces[-1]
        return str(first) if first == last else f"{first}-{last}"

    @property
    def label(self) -> str:
        """The token as people read it: spaces marked `␣`, nothing that a terminal would obey."""
        text = self.text if self.shown is None else self.shown
        if self.shown is not None:
            text = "␣" * (len(text) - len(text.lstrip(" "))) + text.lstrip(" ")
        elif text.startswith(_SPACE_MARKS):
            text = "␣" + text[1:]
        if all(unicodedata.category(character) == "Zs" for character in text):
            text = "␣" * len(text)
        text = visible(text) or "''"
        if set(text) <= JOINERS:
            text = "".join(f"\\u{ord(character):04x}" for character in text)
        # A combining mark or a joiner at the front would attach itself to the cell on its left.
        return "◌" + text if unicodedata.category(text[0]) in {"Mn", "Me", "Cf"} else text

    @property
    def names(self) -> set[str]:
        """Every spelling under which a user may ask for this token."""
        bare = self.text.removeprefix(_WORD_PIECE)
        shown = (self.shown or "").strip()
        return {self.text, self.label, *filter(None, (bare, _unmarked(bare), shown))}

    @property
    def spelling(self) -> str:
        """The token without the mark that says that a space stands before it, if it is more than that mark."""
        return _unmarked(self.text) or self.text


class Tokens(tuple[Token, ...]):
    """A sequence of tokens, in order."""

    __slots__ = ()

    @property
    def ids(self) -> list[int]:
        """The vocabulary rows, in order."""
        return [token.id for token in self]

    def find(self, wanted: str | int, role: str) -> list[int]:
        """Return the positions of the tokens called `wanted`: its text, or a (possibly negative) index.

        Args:
            wanted: a token as the vocabulary or the view spells it, or an integer, which is an index in any case.
            role: "query" or "key", for the error.

        Raises:
            InputMismatchError: no token has that text, or the index is out of range.
        """
        if isinstance(wanted, int):
            return [self.at(wanted, role)]
        named = [token.index for token in self if wanted in token.names]
        if named:
            return named
        try:
            index = int(wanted)
        except ValueError:
            readable = list(dict.fromkeys(token.label for token in self))
            hint = did_you_mean(wanted, readable) or f"; the tokens are: {' '.join(readable[:40])}"
            raise InputMismatchError(f"--{role} '{visible(wanted)}': no such {role} token{hint}") from None
        return [self.at(index, role)]

    def at(self, index: int, role: str) -> int:
        """Return a position of the sequence; a negative one counts from its end.

        Raises:
            InputMismatchError: it is out of range.
        """
        if not -len(self) <= index < len(self):
            raise InputMismatchError(
                f"--{role} {index} is out of range: there are {len(self)} {role} tokens, 0..{len(self) - 1}"
            )
        return index % len(self)
