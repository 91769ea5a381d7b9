"""Where a checkpoint's tensors come from: a module for each place, and all of them answer the same questions.

Whoever computes asks for a tensor by its name, and does not know whether it is mapped from a file or made for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np


class Stored(NamedTuple):
    """What is known of a tensor before it is read.

    Attributes:
        type: of its numbers, as safetensors calls it.
        shape: as it is read.
    """

    type: str
    shape: tuple[int, ...]


class Store(Protocol):
    """The tensors of one checkpoint, by the names that they have in it."""

    @property
    def form(self) -> str:
        """How they are stored, for the headline; empty for plain numbers."""

    @property
    def names(self) -> Collection[str]:
        """Of all its tensors."""

    def stored(self, name: str) -> Stored:
        """Return what is known of a tensor."""

    def prepare(self, names: Collection[str]) -> None:
        """Get what is about to be read, if it has to come from somewhere; names that there are not are passed over."""

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """Return a tensor as it is stored: 16 bits that are no float are a bfloat16; see `attncli.files.to_float32`."""

    def rows(self, name: str, indices: Sequence[int]) -> np.ndarray[Any, Any]:
        """Return some rows of a table as they are stored, without reading the others."""
