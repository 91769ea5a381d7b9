"""Pieces of byte-level vocabularies as the text spells them.

A byte-level vocabulary writes every byte as one character (GPT-2, Radford et al. 2019: `Ġflies`, `ä½ł`), and one with
byte fallback the bytes it has no piece for (SentencePiece: `<0xE4>`). The characters that a piece covers in the text
tell whether it is bytes of them, so that no other vocabulary is misread.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from attncli.trace.tokens import Token, Tokens

_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
_STRAY = re.compile("[\udc80-\udcff]+")  # bytes outside of whole characters, as `surrogateescape` decodes them
# Character of every byte: itself where it is printable Latin-1, else the next one from U+0100 on.
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_BYTES = {chr(byte): byte for byte in _PRINTABLE}
_BYTES |= {chr(0x100 + index): byte for index, byte in enumerate(sorted({*range(256)} - _PRINTABLE))}


def decode_pieces(tokens: Sequence[Token], text: str, pair: str | None = None) -> Tokens:
    """Return the tokens of a text and its pair, each byte-level piece with its own characters.

    Bytes of half a character are `<E4 BD>`.
    """
    pieces = "".join(token.text for token in tokens)
    if pieces.isascii() and "<0x" not in pieces:  # as most are
        return Tokens(tokens)
    spans = Counter((token.segment, token.start, token.end) for token in tokens)

    def is_certain(token: Token) -> bool:
        written = None if token.special or token.start is None else _bytes_of(token.text)
        covered = (text, pair or "")[token.segment][token.start : token.end]
        # `½` is itself to most vocabularies, and also how a byte of its own UTF-8 is written.
        is_itself = token.text == covered and spans[token.segment, token.start, token.end] == 1
        forms = (covered, *(unicodedata.normalize(form, covered) for form in ("NFC", "NFKC")))
        # The space before a word may or may not belong to the piece.
        return written is not None and not is_itself and any(written.lstrip(b" ") in _utf8(form) for form in forms)

    # One certain piece shows the kind of vocabulary, also for pieces without offsets, unless another is not in it.
    is_of_bytes = all(token.special or set(token.text) <= _BYTES.keys() for token in tokens)
    is_of_bytes = is_of_bytes and any(map(is_certain, tokens))
    return Tokens(
        [_spelled(token) if not token.special and (is_of_bytes or is_certain(token)) else token for token in tokens]
    )


def _spelled(token: Token) -> Token:
    if (written := _bytes_of(token.text)) is None:
        return token
    shown = written.decode("utf-8", "surrogateescape")
    return replace(token, shown=_STRAY.sub(lambda stray: f"<{_utf8(stray[0]).hex(' ').upper()}>", shown))


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _bytes_of(piece: str) -> bytes | None:
    """Decode a piece of a byte-level vocabulary to bytes; None where it is plain text."""
    if fallback := _FALLBACK.fullmatch(piece):
        return bytes([int(fallback[1], 16)])
    if piece.isascii() or not _BYTES.keys() >= {*piece}:
        return None
    return bytes(_BYTES[character] for character in piece)
