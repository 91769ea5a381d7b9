"""Stores of a checkpoint's tensors: a module for each place and form of weights, all with one interface.

A tensor is read by its name, whether it is mapped from a file, fetched or computed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class Stored(NamedTuple):
    """Type and shape of a tensor, before it is read."""

    type: str  # of its numbers, in the spelling of safetensors
    shape: tuple[int, ...]  # as it is read


class Store(ABC):
    """The tensors of one checkpoint, by the names that they have in it."""

    form = ""  # how they are stored, for the headline; empty for plain numbers
    names: Collection[str]  # of all its tensors

    @abstractmethod
    def stored(self, name: str) -> Stored:
        """Return the type and the shape of a tensor."""

    def bits(self, name: str) -> int:
        """Return the bits of a number of a tensor that hold its digits; of a quantized one those that it is stored in."""
        return {"F64": 53, "F32": 24, "F16": 11, "BF16": 8}.get(self.stored(name).type, 4)

    def release(self) -> None:  # noqa: B027  most hold nothing
        """Release the memory of tensors that were read; they can be read again."""

    def prepare(self, names: Collection[str]) -> None:  # noqa: B027  most have all of it here
        """Fetch tensors that are about to be read, if they have to come from somewhere; unknown names are ignored."""

    @abstractmethod
    def read(self, name: str) -> Array:
        """Return a tensor as it is stored: 16 bits that are no float are a bfloat16; see `attncli.files.to_float32`."""

    def rows(self, name: str, indices: Sequence[int]) -> Array:
        """Return some rows of a table as they are stored, where it can be without reading the others."""
        return self.read(name)[list(indices)]


class ComputedTensor(NamedTuple):
    """A tensor of the model that is made of stored ones."""

    shape: tuple[int, ...]
    parts: tuple[str, ...]  # the tensors of the checkpoint that are read for it
    read: Callable[[], Array]  # makes its numbers, in float32


class ComputedStore(Store):
    """The tensors of a store; those that are made of parts are computed when they are read."""

    def __init__(self, store: Store, computed: Mapping[str, ComputedTensor], form: str) -> None:
        self._store, self._computed, self.form = store, computed, form
        parts = {part for tensor in computed.values() for part in tensor.parts}
        self.names = dict.fromkeys([*(name for name in store.names if name not in parts), *computed]).keys()

    def stored(self, name: str) -> Stored:
        """See `Store.stored`."""
        return Stored("F32", self._computed[name].shape) if name in self._computed else self._store.stored(name)

    def bits(self, name: str) -> int:
        """See `Store.bits`; most forms have four."""
        return 4 if name in self._computed else self._store.bits(name)

    def release(self) -> None:
        """See `Store.release`."""
        self._store.release()

    def prepare(self, names: Collection[str]) -> None:
        """See `Store.prepare`."""
        parts = (self._computed[name].parts if name in self._computed else (name,) for name in names)
        self._store.prepare([part for of_tensor in parts for part in of_tensor])

    def read(self, name: str) -> Array:
        """See `Store.read`."""
        return self._computed[name].read() if name in self._computed else self._store.read(name)

    def rows(self, name: str, indices: Sequence[int]) -> Array:
        """See `Store.rows`."""
        return super().rows(name, indices) if name in self._computed else self._store.rows(name, indices)
