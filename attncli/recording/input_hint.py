"""Hints that inputs of modules give about the calls to come; without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jaxtyping import Bool, Int

    from attncli.masks.expressions import Numbers

Kind = Literal["tokens", "unpadded", "mask", "positions", "documents", "encoded", "prompt", "window", "chunk"]


class InputHint(NamedTuple):
    """A hint that an input of a module gives about the positions of a batch.

    Of the kinds `unpadded` is tokens without padding, `mask` the tokens that an argument states, `encoded` those of an
    encoder whose output is attended to, and `prompt` those of a prompt and all that was generated since.
    """

    kind: Kind
    # Of tokens, 1 where a position is one; the positions themselves; or the document of each position, −1 in none.
    values: Int[np.ndarray, "B T"]
    size: int  # how many positions a row has; 0 is a first position of any number of them
    digest: int  # equal where kind and values are
    # Padding is at one end alone; positions choose from a larger table; what was encoded is keys and values.
    is_sure: bool = True
    source: str = "embedding"  # of the padding; or `configuration`, `both`, an argument's name

    @classmethod
    def of(
        cls, kind: Kind, values: Int[np.ndarray, "B T"], is_sure: bool = True, source: str = "embedding"
    ) -> InputHint:
        """Return a hint with the size and the digest of its values."""
        digest = hash((kind, is_sure, values.shape, values.tobytes()))
        return cls(kind, values, values.shape[1], digest, is_sure, source)


def numbers_of(name: str, hints: Iterable[InputHint], batch: int, length: int) -> Numbers | None:
    """Return the numbers of an atom that is written without, in each row, by the first hint of its kind."""
    for kind, values in ((one.kind, one.values) for one in hints):
        if kind == name:
            return ((int(values[0, 0]),),) * batch
        if (kind, name) == ("documents", "docs") and len(values) in (1, batch) and values.shape[1] == length:
            starts = (np.flatnonzero((row < 0) | (np.diff(row, prepend=-2) != 0)) for row in values)
            rows = tuple(tuple(np.diff(own, append=length).tolist()) for own in starts)
            return rows * (batch // len(rows))
        if (kind, name) == ("positions", "first") and len(values) == batch and values.shape[1] <= length:
            first, at = length - 1 - values[:, -1:], np.arange(length - values.shape[1], length)
            is_word = at >= first
            alike = np.where(is_word, values == at - first, values == values[:, :1])  # in padding they do not count
            if first.any() and (first >= 0).all() and alike.all():
                return tuple(map(tuple, first.tolist()))
    return None


class Hints(Protocol):
    """Receives the hints of a thread."""

    def add(self, hint: InputHint) -> None:
        """Add a hint about the calls to come."""

    def begin_module(self, is_outermost: bool) -> tuple[int, int]:
        """Return how many calls and hints there were when a module begins."""

    def end_module(self, begun: tuple[int, int]) -> int:
        """Return how many calls a module made; the hints inside of it end with it, if it made some."""

    def encoded_tokens(self) -> Bool[np.ndarray, "B T"] | None:
        """Return which keys of the last call are tokens, if it hides padding."""

    def add_to_last_call(self, hint: InputHint) -> None:
        """Add a hint about the keys of the last call."""
