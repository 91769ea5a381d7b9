"""Pieces of byte-level vocabularies as the text spells them.

A byte-level vocabulary writes every byte as one character (GPT-2, Radford et al. 2019: `Ġflies`, `ä½ł`), and one with
byte fallback the bytes it has no piece for (SentencePiece: `<0xE4>`). Beyond ASCII both are unreadable. They are
recognized by their bytes in the text that the piece covers, so that no other vocabulary is misread.
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


def decode_pieces(tokens: Sequence[Token], text: str, pair: str | None = None) -> Tokens:
    """Return the tokens, each byte-level piece with its own characters; bytes of half a character are `<E4 BD>`.

    The text for segment 0 and the pair for segment 1 show which pieces are bytes.
    """
    pieces = "".join(token.text for token in tokens)
    if pieces.isascii() and "<0x" not in pieces:  # as most are
        return Tokens(tokens)
    places = Counter((token.segment, token.start, token.end) for token in tokens)
    certain = [
        _is_certain(token, (text, pair or "")[token.segment], places[token.segment, token.start, token.end])
        for token in tokens
    ]
    # One certain piece shows the kind of vocabulary, unless another piece could not be in it.
    is_known = any(certain) and all(token.special or set(token.text) <= _BYTES.keys() for token in tokens)
    return Tokens(
        _spelled(token) if is_sure or (is_known and not token.special) else token
        for token, is_sure in zip(tokens, certain, strict=True)
    )


def _is_certain(token: Token, text: str, sharing: int) -> bool:
    """Return whether a piece, of `sharing` pieces that cover the same characters, can only be bytes of them."""
    written = _bytes_of(token.text)
    if token.special or token.start is None or written is None:
        return False
    covered = text[token.start : token.end]
    # `½` is itself to most vocabularies, and also how a byte of its own UTF-8 is written.
    return (token.text != covered or sharing > 1) and _stands_in(written, covered)


def _spelled(token: Token) -> Token:
    written = _bytes_of(token.text)
    if written is None:
        return token
    shown = written.decode("utf-8", "surrogateescape")
    return replace(token, shown=_STRAY.sub(_in_hexadecimal, shown))


def _in_hexadecimal(stray: re.Match[str]) -> str:
    return f"<{stray[0].encode('utf-8', 'surrogateescape').hex(' ').upper()}>"


def _bytes_of(piece: str) -> bytes | None:
    """Decode a piece of a byte-level vocabulary to bytes; None where it is plain text."""
    if fallback := _FALLBACK.fullmatch(piece):
        return bytes([int(fallback[1], 16)])
    if piece.isascii():
        return None
    try:
        return bytes(_BYTES[character] for character in piece)
    except KeyError:
        return None


def _stands_in(written: bytes, covered: str) -> bool:
    """Return whether these bytes are part of a text, as it is or as the tokenizer normalizes it."""
    forms = (covered, *(unicodedata.normalize(form, covered) for form in ("NFC", "NFKC")))
    # The space before a word may or may not belong to the piece.
    return any(written.lstrip(b" ") in form.encode("utf-8", "surrogatepass") for form in forms)


def _byte_alphabet() -> dict[str, int]:
    """Return the character of every byte: itself where it is printable Latin-1, else the next one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(rest)}


_BYTES = _byte_alphabet()
