"""What the forms of quantized weights share: tensors that belong together, bits, scales of blocks, small floats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attncli.checkpoints.tensors import Store
from attncli.errors import LoadError
from attncli.files import to_float32
from attncli.text import visible

Floats = np.ndarray[Any, np.dtype[np.float32]]
Codes = np.ndarray[Any, np.dtype[np.uint8]]
FLOATS = ("F32", "F16", "BF16")  # what scales are stored as
SMALL_FLOATS = ("F8_E4M3", "F8_E5M2")


class QuantizedTensor(NamedTuple):
    """A tensor of the model that is stored in parts.

    Attributes:
        shape: of its numbers.
        parts: the tensors of the checkpoint that it is made of.
        read: makes its numbers.
        type: of its numbers, as safetensors calls it.
    """

    shape: tuple[int, ...]
    parts: tuple[str, ...]
    read: Callable[[], np.ndarray[Any, Any]]
    type: str = "F32"


class QuantizedCheckpoint:
    """The tensors of a checkpoint as they are stored, which have to be of the types and shapes that a form says.

    Args:
        store: of the tensors.
        folder: of the checkpoint, for what is said of it.
    """

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._folder = folder

    def __contains__(self, name: str) -> bool:
        return name in self._store.names

    def ending(self, end: str) -> Iterator[str]:
        """Yield what stands before an end in the names of the tensors that have it."""
        return (name.removesuffix(end) for name in list(self._store.names) if name.endswith(end))

    def type(self, name: str) -> str:
        """Return the type of a tensor; empty if there is none."""
        return self._store.stored(name).type if name in self else ""

    def shape(self, name: str, *types: str, axes: int | None = None) -> tuple[int, ...]:
        """Return the shape of a tensor.

        Args:
            name: of the tensor.
            types: one of which it has to have.
            axes: how many it has to have; None is any number.

        Raises:
            LoadError: it is missing, or something else.
        """
        if name not in self:
            raise self.misfit(f"{visible(name)} is missing")
        stored = self._store.stored(name)
        if stored.type not in types or (axes is not None and len(stored.shape) != axes):
            wanted = " or ".join(types) + ("" if axes is None else f" with {axes} axes")
            raise self.misfit(f"{visible(name)} is {stored.type} {list(stored.shape)}, expected {wanted}")
        return stored.shape

    def check(self, name: str, *shapes: tuple[int, ...]) -> None:
        """Raise LoadError where a tensor has none of these shapes."""
        found = self._store.stored(name).shape
        if found not in shapes:
            wanted = " or ".join(str(list(shape)) for shape in dict.fromkeys(shapes))
            raise self.misfit(f"{visible(name)} has shape {list(found)}, expected {wanted}")

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """Return a tensor as it is stored."""
        return self._store.read(name)

    def floats(self, name: str) -> Floats:
        """Return a tensor of floats, also small ones, in float32."""
        kind, array = self.type(name), self._store.read(name)
        if kind == "F8_E4M3":
            return _E4M3[array]
        if kind == "F8_E5M2":
            return (array.astype(np.uint16) << 8).view(np.float16).astype(np.float32)
        return powers(array) if kind in ("F8_E8M0", "U8") else to_float32(array)

    def misfit(self, what: str) -> LoadError:
        """Return the error for tensors that are not what their form says."""
        return LoadError(
            f"the weights of {visible(str(self._folder))} are not what their quantization says: {what}; check that "
            "the files belong together"
        )

    def unread(self, what: str) -> LoadError:
        """Return the error for a variant of a form that is not undone."""
        return LoadError(
            f"the weights of {visible(str(self._folder))} are quantized, and attn does not read {visible(what)}; give "
            "the checkpoint that it was made from"
        )


def _e4m3() -> Floats:
    """Return the numbers of the 256 codes: a sign, four bits of exponent, three of mantissa; no infinity."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    size = np.where(exponent > 0, np.ldexp(1 + mantissa / 8, exponent - 7), np.ldexp(mantissa / 8, -6))
    size[codes & 127 == 127] = np.nan
    return np.where(codes < 128, size, -size).astype(np.float32)


_E4M3 = _e4m3()


def powers(codes: np.ndarray[Any, Any]) -> Floats:
    """Return the numbers of E8M0, which are exponents of two alone; 255 is no number."""
    with np.errstate(over="ignore"):
        return np.where(codes == 255, np.nan, np.ldexp(np.float32(1), codes.astype(np.int32) - 127)).astype(np.float32)


def unpack_bits(words: np.ndarray[Any, Any], bits: int, count: int) -> Codes:
    """Return numbers of at most eight bits, which follow each other in the words of a row, the lowest bits first.

    Args:
        words: `[rows, words]`, of 32 bits.
        bits: of a number.
        count: how many numbers there are in a row.
    """
    parts = np.ascontiguousarray(words).view(np.uint8)
    if 8 % bits == 0:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        codes = parts[:, :, None] >> shifts & np.uint8((1 << bits) - 1)
        return codes.reshape(len(words), -1)[:, :count]
    starts = np.arange(count) * bits
    # A number of three bits may begin in one byte and end in the next.
    after = np.pad(parts, ((0, 0), (0, 1))).astype(np.uint16)
    wide = after[:, :-1] | after[:, 1:] << 8
    shifted = wide[:, starts // 8] >> (starts % 8).astype(np.uint16)
    return (shifted & ((1 << bits) - 1)).astype(np.uint8)


def scale_blocks(numbers: Floats, scales: Floats, block: tuple[int, int]) -> Floats:
    """Multiply the last two axes of numbers by a scale for each block, in place; the last blocks may be smaller.

    Args:
        numbers: `[..., rows, columns]`.
        scales: `[..., rows of blocks, columns of blocks]`.
        block: rows and columns of one.
    """
    columns = numbers.shape[-1]
    for index in range(scales.shape[-2]):
        rows = slice(index * block[0], (index + 1) * block[0])
        numbers[..., rows, :] *= np.repeat(scales[..., index : index + 1, :], block[1], axis=-1)[..., :columns]
    return numbers


def grid(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, ...]:
    """Return the shape of the scales of a tensor's blocks."""
    return (*shape[:-2], -(-shape[-2] // block[0]), -(-shape[-1] // block[1]))
