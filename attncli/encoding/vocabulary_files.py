"""Files of vocabularies that would end this process, or never be read: refused before a library reads them.

Readers in C++ and Rust index the table of a sentencepiece normalizer without a look whether a place is in it, and go
down a piece a character deep; transformers cuts each piece at every place, so that a long one takes its square of time.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncli.errors import LoadError, is_panic
from attncli.files import MOST_TEXT, read_file
from attncli.text import visible

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_LONGEST = 1 << 12  # bytes of a piece; those of well-known vocabularies have at most some 500
_CUTS = 1 << 30  # of all pieces: the sum of the squares of their lengths
_PIECES = 1 << 22
_MODELS = (".model", ".spm", ".tiktoken")
_LINE = re.compile(rb"([A-Za-z0-9+/]+={0,2}) \d+\r?\n")  # of tiktoken: the bytes of a piece in base64, and its rank
_LINES = re.compile(rb"^\S+ \d{1,20}$", re.MULTILINE)
_LONG = re.compile(rb'"[^"]{512}')
_CHARSMAP = re.compile(rb'"precompiled_charsmap"\s*:\s*"([^"]*)"')
_NORMALIZERS = (3, 5)  # fields of a sentencepiece model
_IDS = 1 << 24


def check_vocabulary(path: Path) -> None:
    """Raise ValueError for a file of a tokenizer that no library here can be trusted to read."""
    try:
        if path.suffix == ".json":
            _check_text(read_file(path, MOST_TEXT), path.name == "tokenizer_config.json")
        elif path.suffix in _MODELS:
            _check_model(read_file(path, MOST_TEXT))
    except ValueError as error:
        raise ValueError(f"{visible(path.name)}: {error}") from None


def read_tokenizer(path: Path, whose: str) -> Tokenizer:
    """Read a tokenizer.json.

    Raises:
        LoadError: it cannot be read; the sentence begins with whose it is.
    """
    from tokenizers import Tokenizer

    try:
        check_vocabulary(path)
        return Tokenizer.from_file(str(path))
    except BaseException as error:  # the library raises bare Exception
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise LoadError(f"{whose}: tokenizer.json cannot be read: {visible(str(error))}") from None


def _check_text(content: bytes, is_config: bool) -> None:
    for found in _CHARSMAP.findall(content):
        _check_charsmap(_unpacked(found))
    if is_config or _LONG.search(content):
        _check_json(json.loads(content))


def _check_model(content: bytes) -> None:
    if _LINE.match(content):
        ranks = {piece: int(rank) for piece, rank in map(bytes.split, _LINES.findall(content))}
        _check_lengths(len(piece) * 3 // 4 for piece in ranks)
        _check_ids(ranks.values())
        if len(set(ranks.values())) < len(ranks):
            raise ValueError("two of its pieces have the same rank")
        return
    fields = list(_fields(content))
    _check_lengths(len(value) for number, value in fields if number == 1)
    for normalizer in (value for number, value in fields if number in _NORMALIZERS):
        for charsmap in (value for number, value in _fields(normalizer) if number == 2 and value):
            _check_charsmap(charsmap)


def _unpacked(found: bytes) -> bytes:
    try:
        return base64.b64decode(found.replace(b"\\/", b"/"))
    except binascii.Error as error:
        raise ValueError(f"its table of characters cannot be read: {error}") from None


def _check_json(content: Any) -> None:
    """Check the pieces of a vocabulary in JSON, of whichever form; and the ids that a configuration adds."""
    if not isinstance(content, Mapping):
        return
    model, added = content.get("model"), content.get("added_tokens_decoder")
    pieces = (model if isinstance(model, Mapping) else content).get("vocab", content)
    if isinstance(pieces, Mapping) and "added_tokens_decoder" not in content:
        check_pieces(pieces)
    elif isinstance(pieces, list):
        check_pieces(_piece(each) for each in pieces)
    if isinstance(added, Mapping):
        _check_ids(int(id_[:20]) for id_ in added if id_.isdecimal())


def _check_ids(ids: Iterable[int]) -> None:
    """Check ids, of which some library goes through all up to the largest."""
    if (largest := max(ids, default=0)) >= _IDS:
        raise ValueError(f"it has the id {largest}; expected less than {_IDS:,}")


def _piece(entry: Any) -> Any:
    """Return the piece of an entry: a pair of it and its score, or an object as in tekken.json."""
    if isinstance(entry, Mapping):
        return entry.get("token_bytes")
    return entry[0] if isinstance(entry, list) and entry else entry


def check_pieces(pieces: Any) -> None:
    """Raise ValueError for pieces that are too many or too long."""
    _check_lengths(len(piece) for piece in pieces if isinstance(piece, str))


def _check_lengths(lengths: Iterator[int]) -> None:
    cuts = 0
    for index, length in enumerate(lengths):
        cuts += length * length
        if length > _LONGEST:
            raise ValueError(f"its piece {index} has {length:,} bytes; at most {_LONGEST:,} are read")
        if cuts > _CUTS or index >= _PIECES:
            raise ValueError("its pieces are too many or too long")


def _fields(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the fields of a message of protobuf that have a length, by their numbers.

    Raises:
        ValueError: it is none.
    """
    place = 0
    while place < len(content):
        key, place = _number(content, place)
        kind = key & 7
        if kind == 0:
            _, place = _number(content, place)
            continue
        length, place = _number(content, place) if kind == 2 else ({1: 8, 5: 4}.get(kind, -1), place)
        if length < 0 or place + length > len(content):
            raise ValueError("it is damaged")
        if kind == 2:
            yield key >> 3, content[place : place + length]
        place += length


def _number(content: bytes, place: int) -> tuple[int, int]:
    """Return a number of protobuf, and the place behind it."""
    number = 0
    for shift in range(0, 70, 7):
        if place >= len(content):
            break
        byte = content[place]
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, place
    raise ValueError("it is damaged")


def _check_charsmap(content: bytes) -> None:
    """Check what a normalizer of sentencepiece replaces characters by.

    Four bytes of length, a double array (https://github.com/s-yata/darts-clone), and texts that end in zeros. A unit
    has a label, which is the byte by which it is reached, and how far ahead its followers are; where a key ends there,
    the unit at that place says where its text begins.

    Raises:
        ValueError: a place is beyond the array or its texts.
    """
    import numpy as np

    size = int.from_bytes(content[:4], "little")
    texts = content[4 + size :]
    if size < 4 or size % 4 or not texts.endswith(b"\0"):
        raise ValueError("its table of characters is damaged")
    units = np.frombuffer(content, "<u4", size // 4, 4).astype(np.int64)
    ahead, labels = units >> 10 << ((units & 512) >> 6), units & 0x800000FF
    waiting = np.flatnonzero((labels > 0) & (labels < 256))
    reached = np.zeros(len(units), bool)
    places, ends = ahead[:1], np.zeros(1, bool)
    while len(places):
        if (places | 255).max() >= len(units):
            raise ValueError("its table of characters leads out of itself")
        begins = units[places[ends]] & 0x7FFFFFFF
        if any(begin >= len(texts) or texts[begin] & 0xC0 == 0x80 for begin in begins.tolist()):
            raise ValueError("its table of characters names texts that are not there")
        reached[places] = True
        is_next = reached[waiting ^ labels[waiting]]
        found, waiting = waiting[is_next], waiting[~is_next]
        places, ends = found ^ ahead[found], units[found] >> 8 & 1 == 1
