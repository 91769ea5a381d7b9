"""A GGUF file: what it says of its model, and where in it each tensor is.

<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. The header is read here, within the bounds of the file: the
reader of the `gguf` package trusts its counts. What stands for numbers in the blocks of a tensor is computed by that
package.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attncli.checkpoints.folder import check_name
from attncli.checkpoints.tensors import Stored
from attncli.errors import LoadError, require
from attncli.files import check_file
from attncli.text import visible

_PLAIN = {0: ("F32", "<f4"), 1: ("F16", "<f2"), 30: ("BF16", "<u2")}  # the numbers themselves, by the codes of types
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
_VERSIONS = (2, 3)
_MOST_ENTRIES = 1 << 21  # of a list of texts; the largest vocabularies have half a million merges
_MOST_TENSORS = 1 << 17
_MOST_AXES = 4


class _Place(NamedTuple):
    """Where a tensor is: the code of its type, its shape, and its bytes, from the beginning of the file."""

    type: int
    shape: tuple[int, ...]
    start: int
    size: int


class GgufFile:
    """A file, which is mapped; nothing of its tensors is read yet.

    Attributes:
        metadata: what it says of its model.
        shapes: of its tensors, by the names that they have in it.

    Raises:
        LoadError: it is no such file, or damaged, or what reads its tensors is not installed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        check_name(path)
        try:
            check_file(path)
            with open(path, "rb") as file:
                self._pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # an empty file cannot be mapped
            raise self.damaged(getattr(error, "strerror", None) or str(error)) from None
        self._at = 0
        try:
            self.metadata = self._header()
            self._places = self._table(self.metadata.get("general.alignment", 32))
        except struct.error:
            raise self.damaged("it ends before its header does") from None
        self.shapes = {name: place.shape for name, place in self._places.items()}

    def damaged(self, why: str) -> LoadError:
        """Return the error for a file that is not what it says."""
        return LoadError(f"the GGUF file {visible(str(self.path))} cannot be read: {visible(why)}")

    @property
    def is_plain(self) -> bool:
        """Whether all its tensors are the numbers themselves."""
        return all(place.type in _PLAIN for place in self._places.values())

    def stored(self, name: str) -> Stored:
        """Return the type of a tensor as it is read, and its shape."""
        place = self._places[name]
        return Stored(_PLAIN.get(place.type, ("F32",))[0], place.shape)

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """Return the numbers of a tensor."""
        place = self._places[name]
        numbers = self._numbers(place, np.frombuffer(self._pages, np.uint8, place.size, place.start))
        return numbers.reshape(place.shape)

    def rows(self, name: str, indices: Sequence[int]) -> np.ndarray[Any, Any]:
        """Return the numbers of some rows of a table; the blocks of the others are not read."""
        place = self._places[name]
        table = np.frombuffer(self._pages, np.uint8, place.size, place.start).reshape(place.shape[0], -1)
        numbers = self._numbers(place, table[list(indices)].reshape(-1))
        return numbers.reshape(len(indices), *place.shape[1:])

    def _numbers(self, place: _Place, blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if place.type in _PLAIN:
            return blocks.view(_PLAIN[place.type][1])
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        kind = GGMLQuantizationType(place.type)
        try:
            return dequantize(blocks, kind)
        except NotImplementedError:
            raise LoadError(
                f"the GGUF file {visible(str(self.path))} has tensors of type {kind.name}, which the gguf package does "
                "not read; give the model in another quantization"
            ) from None

    def _take(self, form: str) -> Any:
        """Return the next number of a form."""
        (value,) = struct.unpack_from("<" + form, self._pages, self._at)
        self._at += struct.calcsize("<" + form)
        return value

    def _text(self) -> str:
        length = self._take("Q")
        if length > len(self._pages) - self._at:
            raise struct.error
        self._at += length
        return self._pages[self._at - length : self._at].decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind == _LIST:
            return self._list(self._take("I"), self._take("Q"))
        if kind not in _SCALARS:
            raise self.damaged(f"it has a field of type {kind}")
        return self._take(_SCALARS[kind])

    def _list(self, kind: int, count: int) -> Any:
        if kind == _TEXT:
            if count > _MOST_ENTRIES:
                raise self.damaged(f"it has a list of {count} texts")
            return [self._text() for _ in range(count)]
        if kind not in _SCALARS:
            raise self.damaged(f"it has a list of type {kind}")
        form = "<" + _SCALARS[kind]
        size = struct.calcsize(form)
        if count > (len(self._pages) - self._at) // size:
            raise struct.error
        self._at += count * size
        return np.frombuffer(self._pages, form, count, self._at - count * size)

    def _header(self) -> dict[str, Any]:
        if self._pages[:4] != b"GGUF":
            raise self.damaged("it does not begin as one")
        self._at = 4
        if (version := self._take("I")) not in _VERSIONS:
            raise self.damaged(f"it is of version {version}, expected 2 or 3")
        self._tensors, fields = self._take("Q"), self._take("Q")
        if self._tensors > _MOST_TENSORS or fields > _MOST_TENSORS:
            raise self.damaged(f"it claims to have {self._tensors} tensors and {fields} fields")
        return {self._text(): self._value(self._take("I")) for _ in range(fields)}

    def _table(self, alignment: Any) -> dict[str, _Place]:
        """Return where each tensor is."""
        if type(alignment) is not int or alignment < 1:
            raise self.damaged(f"its alignment is {alignment!r}")
        listed = []
        for _ in range(self._tensors):
            name, axes = self._text(), self._take("I")
            if axes > _MOST_AXES:
                raise self.damaged(f"{name} has {axes} axes")
            # The axis whose numbers stand side by side comes first.
            shape = tuple(self._take("Q") for _ in range(axes))[::-1]
            listed.append((name, shape, self._take("I"), self._take("Q")))
        begin = -(-self._at // alignment) * alignment
        return {name: self._place(name, shape, kind, begin + start) for name, shape, kind, start in listed}

    def _place(self, name: str, shape: tuple[int, ...], kind: int, start: int) -> _Place:
        block, size = self._sizes(name, kind)
        width = shape[-1] if shape else 1
        bytes_of = prod(shape) // block * size
        if width % block or not prod(shape) or start + bytes_of > len(self._pages):
            raise self.damaged(f"{name} of shape {list(shape)} is not whole")
        return _Place(kind, shape, start, bytes_of)

    def _sizes(self, name: str, kind: int) -> tuple[int, int]:
        """Return how many numbers a block of a type has, and how many bytes."""
        if kind in _PLAIN:
            return 1, np.dtype(_PLAIN[kind][1]).itemsize
        require(f"{visible(str(self.path))}, whose tensors are quantized,", "gguf")
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        try:
            return GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except (KeyError, ValueError):
            raise self.damaged(f"{name} is of type {kind}, which is not known") from None
