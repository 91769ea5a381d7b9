"""Tokens of a sequence: pieces of the vocabulary, their positions in the text, and safe labels to show them by."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from attncli.errors import InputMismatchError
from attncli.text import JOINERS, did_you_mean, visible

# Marks of "a space comes before this piece": byte-level BPE and SentencePiece.
_SPACE_MARKS = ("\u0120", "\u2581")
_SPACES = "".join(_SPACE_MARKS)
_WORD_PIECE = "##"


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a sequence."""

    index: int  # position in the sequence, from 0
    id: int  # row of the vocabulary
    text: str  # the piece as the vocabulary spells it (`##ing`, `Ġflies`)
    start: int | None  # first character of the piece in the text; None for a token that has no offset
    end: int | None  # one past its last character, or None
    special: bool = False  # whether the tokenizer added it ([CLS], <s>, …), or the model or the chat template wrote it
    segment: int = 0  # 0 for the text, 1 for the second text of a pair
    word: int | None = None  # index of its word in the tokenizer's own splitting; None where it does not split
    shown: str | None = None  # the piece as the text spells it, where the vocabulary spells it byte by byte
    # Of a word, the indices of its tokens; its text is that of the sentence, its id the first word of the same pieces.
    pieces: tuple[int, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the token as in the JSON document."""
        names = ("index", "id", "text", "start", "end", "special", "segment")
        written: dict[str, Any] = {name: getattr(self, name) for name in names}
        return written | {"id": None, "pieces": list(self.pieces)} if self.pieces else written

    @property
    def below(self) -> str:
        """Second line of the token in a list of tokens: its id, or the indices of its pieces."""
        if not self.pieces:
            return str(self.id)
        return "-".join(map(str, sorted({self.pieces[0], self.pieces[-1]})))

    @property
    def label(self) -> str:
        """The token as people read it: spaces marked `␣`, nothing that a terminal would obey."""
        text = self.text if self.shown is None else self.shown
        if text.isascii() and text.isprintable() and text[:1] not in ("", " "):
            return text
        if self.shown is not None:
            text = "␣" * (len(text) - len(text.lstrip(" "))) + text.lstrip(" ")
        elif text.startswith(_SPACE_MARKS):
            text = "␣" + text[1:]
        if all(unicodedata.category(character) == "Zs" for character in text):
            text = "␣" * len(text)
        text = visible(text) or "''"
        if set(text) <= JOINERS:
            text = text.encode("unicode_escape").decode()
        # A combining mark or a joiner at the front would attach itself to the cell on its left.
        return "◌" + text if unicodedata.category(text[0]) in {"Mn", "Me", "Cf"} else text

    @property
    def names(self) -> set[str]:
        """Every spelling that finds this token."""
        piece = self.text.removeprefix(_WORD_PIECE)
        return {self.text, self.label, piece, piece.lstrip(_SPACES), self.bare} - {""}

    @property
    def bare(self) -> str:
        """The characters of the token, without the vocabulary's marks before them."""
        piece = self.text.removeprefix(_WORD_PIECE).lstrip(_SPACES)
        return piece if self.shown is None else self.shown.strip()

    @property
    def spelling(self) -> str:
        """The token without the vocabulary's mark of a space before it, if it is more than that mark."""
        return self.text.lstrip(_SPACES) or self.text


class NextToken(NamedTuple):
    """A possible next token, with its logit, and its log-probability in nats."""

    token: Token
    logit: float
    logprob: float


class Tokens(tuple[Token, ...]):
    """A sequence of tokens, in order."""

    __slots__ = ()

    @property
    def ids(self) -> list[int]:
        """The vocabulary rows, in order."""
        return [token.id for token in self]

    @classmethod
    def without_text(cls, ids: Iterable[int]) -> Tokens:
        """Return tokens with ids alone, and no text."""
        return cls(Token(index, id_, str(id_), None, None) for index, id_ in enumerate(ids))

    def find(self, wanted: str | int, role: str) -> list[int]:
        """Return the positions of the tokens named `wanted`: a text, or a (possibly negative) index.

        A word of several pieces is its last piece, which under a causal mask is the one that sees all of them.

        Raises:
            InputMismatchError: no token has that text, or the index is out of range.
        """
        named = [] if isinstance(wanted, int) else [token.index for token in self if wanted in token.names]
        if named:
            return named
        try:
            index = int(wanted)
        except ValueError:
            if runs := self._runs_of(str(wanted)):
                return [run[-1] for run in runs]
            labels = list(dict.fromkeys(token.label for token in self))
            hint = did_you_mean(str(wanted), labels) or f"; the tokens are: {' '.join(labels[:40])}"
            raise InputMismatchError(f"--{role} '{visible(str(wanted))}': no such {role} token{hint}") from None
        if not -len(self) <= index < len(self):
            there = f"there are {len(self)} {role} tokens, 0..{len(self) - 1}"
            raise InputMismatchError(f"--{role} {index} is out of range: {there}")
        return [index % len(self)]

    def pieces_note(self, wanted: str | int) -> str:
        """Return a note on the pieces of a word, whose last one is used; empty for a single token."""
        is_token = not isinstance(wanted, str) or any(wanted in token.names for token in self)
        runs = [] if is_token else self._runs_of(str(wanted))
        if not runs:
            return ""
        first, last = runs[0][0], runs[0][-1]
        return f"'{visible(str(wanted))}' is pieces {first}–{last}; this is its last, {last} {self[last].label}"

    def _runs_of(self, word: str) -> list[range]:
        """Return the runs of several tokens that spell a whole word."""
        runs = []
        for first in range(len(self)):
            spelled, last = self[first].bare, first
            while len(spelled) < len(word) and self._is_joined(last) and word.startswith(spelled):
                last += 1
                spelled += self[last].bare
            before = self[first - 1].bare[-1:] if first and self._is_joined(first - 1) else ""
            after = self[last + 1].bare[:1] if self._is_joined(last) else ""
            if last > first and spelled == word and not before.isalnum() and not after.isalnum():
                runs.append(range(first, last + 1))
        return runs

    def _is_joined(self, index: int) -> bool:
        """Return whether the next token continues the text of this one without a space."""
        if index + 1 >= len(self) or self[index].special or self[index + 1].special:
            return False
        left, right = self[index], self[index + 1]
        if right.text.startswith(_WORD_PIECE):
            return True
        has_space = right.text.startswith(_SPACE_MARKS) or (right.shown or "").startswith(" ")
        return left.end is not None and left.end == right.start and left.segment == right.segment and not has_space


# --- pieces of byte-level vocabularies, as the text spells them --------------------------------------------
# A byte-level vocabulary writes every byte as one character (GPT-2, Radford et al. 2019: `Ġflies`, `ä½ł`), and one with
# byte fallback the bytes it has no piece for (SentencePiece: `<0xE4>`). Offsets tell whether a piece is such bytes.

_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
_STRAY = re.compile("[\udc80-\udcff]+")  # bytes outside of whole characters, as `surrogateescape` decodes them
# Character of every byte: itself where it is printable Latin-1, else the next one from U+0100 on.
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_BYTES = {chr(byte): byte for byte in _PRINTABLE}
_BYTES |= {chr(0x100 + index): byte for index, byte in enumerate(sorted({*range(256)} - _PRINTABLE))}


def decode_pieces(tokens: Sequence[Token], text: str, pair: str | None = None) -> Tokens:
    """Return the tokens of a text and its pair, each byte-level piece with its characters; `<E4 BD>` is half of one."""
    pieces = "".join(token.text for token in tokens)
    if pieces.isascii() and "<0x" not in pieces:  # as most are
        return Tokens(tokens)
    texts, plain = (text, pair or ""), [token for token in tokens if not token.special]
    decoded = {token: written for token in plain if (written := _bytes_of(token.text)) is not None}
    certain = {token for token, written in decoded.items() if _is_spelled_in(written, token, texts[token.segment])}
    # One certain piece shows the kind of vocabulary, also for the other pieces, if all are written so.
    if certain and {*"".join(token.text for token in plain)} <= _BYTES.keys():
        certain = {*decoded}
    return Tokens(replace(token, shown=_shown(decoded[token])) if token in certain else token for token in tokens)


def _is_spelled_in(written: bytes, token: Token, text: str) -> bool:
    covered = text[token.start : token.end]
    if token.start is None or token.text == covered:  # `½` is itself to most vocabularies
        return False
    # The space before a word may or may not belong to the piece.
    forms = (covered, unicodedata.normalize("NFC", covered))
    return any(written.lstrip(b" ") in form.encode(errors="surrogateescape") for form in forms)


def _shown(written: bytes) -> str:
    text = written.decode("utf-8", "surrogateescape")
    return _STRAY.sub(lambda stray: f"<{stray[0].encode(errors='surrogateescape').hex(' ').upper()}>", text)


def _bytes_of(piece: str) -> bytes | None:
    """Decode a piece of a byte-level vocabulary; None where it is plain text."""
    if fallback := _FALLBACK.fullmatch(piece):
        return bytes([int(fallback[1], 16)])
    return None if piece.isascii() or not _BYTES.keys() >= {*piece} else bytes(map(_BYTES.__getitem__, piece))
