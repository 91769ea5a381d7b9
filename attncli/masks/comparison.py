"""Where two masks differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attncli.errors import InputError
from attncli.masks.subject import Subject
from attncli.tokens import visible

if TYPE_CHECKING:
    from jaxtyping import Bool


@dataclass(frozen=True)
class Comparison:
    """Two masks side by side; where they have several planes, a cell counts once however many differ.

    Attributes:
        names: what the two are called.
        only_first: cells that only the first one allows.
        only_second: cells that only the second one allows.
        both: cells that both allow in every plane.
        past: how many keys stand before the first query.
    """

    names: tuple[str, str]
    only_first: Bool[np.ndarray, "Q K"]
    only_second: Bool[np.ndarray, "Q K"]
    both: Bool[np.ndarray, "Q K"]
    past: int

    @property
    def count(self) -> int:
        """How many cells differ."""
        return int(np.count_nonzero(self.only_first | self.only_second))


def compare(first: Subject, second: Subject) -> Comparison:
    """Compare two masks, head by head where one of them has several.

    Raises:
        InputError: they are not of one size.
    """
    one, other = first.allowed, second.allowed
    if one.shape[1:] != other.shape[1:] or (len(one) != len(other) and 1 not in (len(one), len(other))):
        shapes = " and ".join(f"{visible(subject.name)} is {_shape(subject)}" for subject in (first, second))
        raise InputError(f"masks of different sizes cannot be compared: {shapes}")
    return Comparison(
        (first.name, second.name),
        (one & ~other).any(axis=0),
        (other & ~one).any(axis=0),
        (one & other).all(axis=0),
        first.past,
    )


def _shape(subject: Subject) -> list[int]:
    shape = subject.allowed.shape
    return list(shape[1:] if shape[0] == 1 else shape)
