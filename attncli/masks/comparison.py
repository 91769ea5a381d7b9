"""Comparison of two masks, cell by cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attncli.errors import InputError
from attncli.masks.mask_grid import MaskGrid
from attncli.text import visible

if TYPE_CHECKING:
    from jaxtyping import Bool


@dataclass(frozen=True)
class Comparison:
    """Two masks side by side; where they have several planes, a cell counts once however many differ.

    Attributes:
        names: the names of the two.
        only_first: cells that only the first one allows.
        only_second: cells that only the second one allows.
        both: cells that both allow in every plane.
        past: how many keys stand before the first query.
        first_key: the position of the first column; of padding before a sentence it is below 0.
        batch_row: the batch row that the cells are of, where a batch has several.
    """

    names: tuple[str, str]
    only_first: Bool[np.ndarray, "Q K"]
    only_second: Bool[np.ndarray, "Q K"]
    both: Bool[np.ndarray, "Q K"]
    past: int
    first_key: int = 0
    batch_row: int = 0

    @property
    def count(self) -> int:
        """How many cells differ."""
        return int(np.count_nonzero(self.only_first | self.only_second))


def compare(first: MaskGrid, second: MaskGrid) -> Comparison:
    """Compare two masks, head by head and batch row by batch row where one of them has several.

    Raises:
        InputError: they are not of one size.
    """
    one, other = first.cells, second.cells
    try:
        planes = tuple(range(len(np.broadcast_shapes(one.shape[:-2], other.shape[:-2]))))
        differ = one.shape[-2:] != other.shape[-2:]
    except ValueError:
        differ = True
    if differ:
        shapes = " and ".join(f"{visible(subject.name)} is {list(subject.shape)}" for subject in (first, second))
        raise InputError(f"masks of different sizes cannot be compared: {shapes}")
    return Comparison(
        (first.name, second.name),
        (one & ~other).any(axis=planes),
        (other & ~one).any(axis=planes),
        (one & other).all(axis=planes),
        first.past,
    )
