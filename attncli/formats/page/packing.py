"""Packed numbers of a page: small integers, deflated, in base64; read back by `data.js`.

A weight is rounded correctly (a tie to the even digit) to some decimals, and counted in units of the last one, in 16
bits with a sign. Special values have codes of their own; a masked cell has its weight like any other, and the mask is
packed separately.
"""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, UInt8

NAN, PLUS_INFINITY, ABOVE, BELOW, MINUS_INFINITY = 32767, 32766, 32765, -32766, -32767
_LARGEST = 32764  # of three decimals 32.764; a softmax gives at most 1, a file may hold anything


def pack_weights(blocks: Iterable[Float[np.ndarray, "R C"]], decimals: int) -> Iterator[str]:
    """Yield the packed weights of one head, given in blocks of rows, rounded to `decimals` decimals.

    The low bytes of a row come before its high bytes, which are nearly all 0: that deflates better and faster.
    """
    return _packed(_planes(counts_of(block, decimals)) for block in blocks)


def pack_mask(blocks: Iterable[Bool[np.ndarray, "R C"]]) -> Iterator[str]:
    """Yield the packed mask of one head, a bit a cell, every row in bytes of its own."""
    return _packed(np.packbits(block, axis=1).tobytes() for block in blocks)


def pack_halves(values: Float[np.ndarray, "R D"]) -> Iterator[str]:
    """Yield packed vectors, rounded to float16; numbers beyond its range are infinities."""
    with np.errstate(over="ignore"):
        return _packed([values.astype("<f2").tobytes()])


def pack_pixels(pixels: UInt8[np.ndarray, "R C 3"]) -> Iterator[str]:
    """Yield a packed picture: of each row how its colours differ from those above, modulo 256."""
    return _packed([np.diff(pixels, axis=0, prepend=np.uint8(0)).tobytes()])


def counts_of(weights: Float[np.ndarray, "R C"], decimals: int) -> Int[np.ndarray, "R C"]:
    """Return weights as `int16`, in units of the last decimal, or the codes of special values."""
    with np.errstate(invalid="ignore", over="ignore"):
        rounded = np.rint(weights.astype(np.float32).astype(np.float64) * 10**decimals)  # the product is exact
    codes = np.where(rounded > _LARGEST, ABOVE, np.where(rounded < -_LARGEST, BELOW, rounded))
    codes = np.where(np.isposinf(weights), PLUS_INFINITY, np.where(np.isneginf(weights), MINUS_INFINITY, codes))
    return np.where(np.isnan(weights), NAN, codes).astype("<i2")


def odd_codes(decimals: int) -> list[tuple[int, str, str, str]]:
    """Return the codes of what is no number, each with the mark of its colour, its sign and its name."""
    largest = _LARGEST / 10**decimals
    return [
        (NAN, "X", "×", "NaN"),
        (PLUS_INFINITY, "I", "∞", "inf"),
        (MINUS_INFINITY, "-I", "-∞", "-inf"),
        (ABOVE, "+", ">", f"> {largest:g}"),
        (BELOW, "-", "<", f"< -{largest:g}"),
    ]


def _planes(codes: Int[np.ndarray, "R C"]) -> bytes:
    rows, columns = codes.shape
    return np.ascontiguousarray(codes).view(np.uint8).reshape(rows, columns, 2).swapaxes(1, 2).tobytes()


def _packed(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield bytes deflated (RFC 1950) and in base64, without ever holding them all."""
    deflate = zlib.compressobj()
    waiting = b""
    for piece in chain(map(deflate.compress, chunks), (deflate.flush() for _ in range(1))):
        waiting += piece
        length = len(waiting) - len(waiting) % 3  # base64 writes three bytes at a time
        yield b64encode(waiting[:length]).decode()
        waiting = waiting[length:]
    yield b64encode(waiting).decode()
