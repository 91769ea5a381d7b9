"""The header of a safetensors file, which says where its tensors are, read from its bytes and not from a file.

What safetensors refuses is refused: https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
import math
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple, NoReturn

PREFIX = 8  # bytes that say how long the header is
MOST = 100_000_000  # bytes of a header
_MOST_COUNT = 2**64 - 1
_BITS = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "C64": 64} | {
    f"{kind}{bits}{rest}": bits
    for kinds, bits, rests in (
        (("U", "I"), 8, ("",)),
        (("F",), 8, ("_E5M2", "_E4M3", "_E8M0", "_E4M3FNUZ", "_E5M2FNUZ")),
        (("U", "I", "F", "BF"), 16, ("",)),
        (("U", "I", "F"), 32, ("",)),
        (("U", "I", "F"), 64, ("",)),
    )
    for kind in kinds
    for rest in rests
}


class Entry(NamedTuple):
    """What a header says of a tensor.

    Attributes:
        type: of its numbers.
        shape: of it.
        begin: the byte of the file where it begins.
        end: the byte after it.
    """

    type: str
    shape: tuple[int, ...]
    begin: int
    end: int


def header_end(prefix: bytes, size: int) -> int:
    """Return where the header of a file ends.

    Args:
        prefix: the first bytes of the file.
        size: of the file.

    Raises:
        ValueError: the file is too small, or the header too large.
    """
    end = PREFIX + int.from_bytes(prefix[:PREFIX], "little")
    if len(prefix) < PREFIX or end > size:
        raise ValueError("the file is smaller than its header")
    if end - PREFIX > MOST:
        raise ValueError("its header is too large")
    return end


def read_header(header: bytes, size: int) -> dict[str, Entry]:
    """Return what the header of a file says of its tensors.

    Args:
        header: the file up to `header_end`.
        size: of the whole file.

    Raises:
        ValueError: it is damaged: no such JSON, tensors that overlap, leave a hole or are not of the size that their
            type and shape make, or a file of another size than all of them.
    """
    try:
        said = json.loads(header[PREFIX:].decode("utf-8"), parse_constant=_refuse)
        about = said.pop("__metadata__", None)
        about = {} if about is None else about
        if type(about) is not dict or not all(type(value) is str for value in about.values()):
            raise TypeError
        entries = {name: _entry(given, len(header)) for name, given in said.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ValueError("its header is damaged") from None
    end = len(header)
    for name, entry in sorted(entries.items(), key=lambda item: item[1][2:]):
        if entry.begin != end:
            raise ValueError(f"tensor {name} does not begin where the one before it ends")
        if (entry.end - entry.begin) * 8 != _BITS[entry.type] * math.prod(entry.shape):
            raise ValueError(f"tensor {name} has not the size that its type and shape make")
        end = entry.end
    if end != size:
        raise ValueError(f"its tensors end at byte {end:,}, and the file has {size:,}")
    return entries


def _entry(given: dict[str, Any], start: int) -> Entry:
    begin, end = given["data_offsets"]
    if given["dtype"] not in _BITS or not all(
        type(count) is int and 0 <= count <= _MOST_COUNT for count in (begin, end, *given["shape"])
    ):
        raise TypeError
    if any(count > _MOST_COUNT for count in accumulate(given["shape"], mul)):  # also where a 0 follows
        raise ValueError
    return Entry(given["dtype"], tuple(given["shape"]), start + begin, start + end)


def _refuse(_: str) -> NoReturn:
    raise ValueError
