"""Checks of vocabulary files, which refuse those that would crash or stall the library that reads them.

Readers in Rust recurse for each character of a piece, until the stack overflows, and panic where a table of characters
points out of itself. transformers cuts each piece at every character, which takes quadratic time. Some readers
iterate over all ids up to the largest.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping
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
_IDS = 1 << 24
_TIKTOKEN = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")  # a line: the bytes of a piece in base64, and its rank
_CHARSMAP = re.compile(rb'"precompiled_charsmap"\s*:\s*"([^"]*)"')
_LONG = re.compile(rb'"[^"]{512}')


def read_tokenizer(path: Path, whose: str, content: bytes | None = None) -> Tokenizer:
    """Read a tokenizer.json, from its content if that was read already.

    Raises:
        LoadError: it cannot be read; the sentence begins with whose it is.
    """
    from tokenizers import Tokenizer

    try:
        check_vocabulary(path, content=content)
        return Tokenizer.from_file(str(path)) if content is None else Tokenizer.from_buffer(content)
    except BaseException as error:  # the library raises bare Exception
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise LoadError(f"{whose}: tokenizer.json cannot be read: {visible(str(error))}") from None


def check_vocabulary(
    path: Path,
    read_sentencepiece: Callable[[bytes], Any] | None = None,
    content: bytes | None = None,
    is_alone: bool = False,
) -> None:
    """Refuse a file of a tokenizer that no library here can be trusted to read.

    Args:
        path: of the file.
        read_sentencepiece: parses a model of sentencepiece, or returns None where no package can.
        content: the content, if it was read already.
        is_alone: whether there is no tokenizer.json with it.

    Raises:
        ValueError: it cannot.
    """
    try:
        if path.suffix == ".json":
            content = read_file(path, MOST_TEXT) if content is None else content
            for table in _CHARSMAP.findall(content):
                _check_charsmap(base64.b64decode(table.replace(b"\\/", b"/")))
            if path.name == "tokenizer_config.json" or _LONG.search(content):
                _check_json(json.loads(content))
        elif path.suffix in (".model", ".spm"):
            content = read_file(path, MOST_TEXT)
            if _TIKTOKEN.match(content):
                if is_alone:
                    raise ValueError("it is a vocabulary of tiktoken; give a checkpoint that has a tokenizer.json")
            elif read_sentencepiece and (model := read_sentencepiece(content)) is not None:
                _check_pieces(piece.piece for piece in model.pieces)
                for normalizer in (model.normalizer_spec, model.denormalizer_spec):
                    if normalizer.precompiled_charsmap:
                        _check_charsmap(normalizer.precompiled_charsmap)
    except ValueError as error:
        raise ValueError(f"{visible(path.name)}: {error}") from None


def _check_json(content: Any) -> None:
    """Check the pieces of a vocabulary in JSON, of whichever form; and the ids that a configuration adds."""
    if not isinstance(content, Mapping):
        return
    model, added = content.get("model"), content.get("added_tokens_decoder")
    pieces = (model if isinstance(model, Mapping) else content).get("vocab", content)
    if isinstance(pieces, Mapping) and "added_tokens_decoder" not in content:
        _check_pieces(pieces)
    elif isinstance(pieces, list):
        # An entry is a pair of a piece and its score, or an object as in tekken.json.
        bare = (each.get("token_bytes") if isinstance(each, Mapping) else each for each in pieces)
        _check_pieces(each[0] if isinstance(each, list) and each else each for each in bare)
    if isinstance(added, Mapping):
        largest = max((int(id_[:20]) for id_ in added if id_.isdecimal()), default=0)
        if largest >= _IDS:
            raise ValueError(f"it has the id {largest}; expected less than {_IDS:,}")


def _check_pieces(pieces: Iterable[Any]) -> None:
    """Raise ValueError for pieces that are too many or too long."""
    cuts = 0
    for index, piece in enumerate(pieces):
        length = len(piece) if isinstance(piece, str | bytes) else 0
        cuts += length * length
        if length > _LONGEST:
            raise ValueError(f"its piece {index} has {length:,} bytes; at most {_LONGEST:,} are read")
        if cuts > _CUTS or index >= _PIECES:
            raise ValueError("its pieces are too many or too long")


def _check_charsmap(content: bytes) -> None:
    """Check the table of character replacements of a normalizer of sentencepiece.

    Four bytes of length, a double array (https://github.com/s-yata/darts-clone), and texts that end in zeros. A
    unit has the offset of its followers, a block of 256; where a key ends there, the first of them is a leaf, with
    the offset of its text.

    Raises:
        ValueError: an offset is beyond the array or its texts.
    """
    import numpy as np

    size = int.from_bytes(content[:4], "little")
    texts = np.frombuffer(content[4 + size :], np.uint8)
    if size < 4 or size % 4 or not texts.size or texts[-1]:
        raise ValueError("its table of characters is damaged")
    units = np.frombuffer(content, "<u4", size // 4, 4).astype(np.int64)
    inner = np.flatnonzero(units >> 31 == 0)
    followers = inner ^ (units[inner] >> 10 << ((units[inner] & 512) >> 6))
    if not inner.size or (followers | 255).max() >= len(units):
        raise ValueError("its table of characters is damaged at its end")
    begins = units[followers[units[inner] >> 8 & 1 == 1]] & 0x7FFFFFFF
    if (begins >= texts.size).any() or (texts[begins] & 0xC0 == 0x80).any():
        raise ValueError("its table of characters names texts that are not there")
