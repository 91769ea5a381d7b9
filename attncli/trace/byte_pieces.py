"""Pieces of byte-level vocabularies as the text spells them.

A byte-level vocabulary writes every byte as one character (GPT-2, Radford et al. 2019: `Ġflies`, `ä½ł`), and one with
byte fallback the bytes it has no piece for (SentencePiece: `<0xE4>`). Offsets tell whether a piece is such bytes.
"""

import re
import unicodedata
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
