"""Where a checkpoint's tensors come from: a module for each place, and all of them answer the same questions.

Whoever computes asks for a tensor by its name, and does not know whether it is mapped from a file or made for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


class Stored(NamedTuple):
    """What is known of a tensor before it is read."""

    type: str  # of its numbers, as safetensors calls it
    shape: tuple[int, ...]  # as it is read


class Store(ABC):
    """The tensors of one checkpoint, by the names that they have in it.

    Attributes:
        form: how they are stored, for the headline; empty for plain numbers.
        names: of all its tensors.
    """

    form = ""
    names: Collection[str]

    @abstractmethod
    def stored(self, name: str) -> Stored:
        """Return what is known of a tensor."""

    def prepare(self, names: Collection[str]) -> None:  # noqa: B027  most have all of it here
        """Get what is about to be read, if it has to come from somewhere; names that there are not are passed over."""

    @abstractmethod
    def read(self, name: str) -> Array:
        """Return a tensor as it is stored: 16 bits that are no float are a bfloat16; see `attncli.files.to_float32`."""

    def rows(self, name: str, indices: Sequence[int]) -> Array:
        """Return some rows of a table as they are stored, where it can be without reading the others."""
        return self.read(name)[list(indices)]
