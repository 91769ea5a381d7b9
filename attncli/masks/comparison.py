"""Where two masks differ, and what a mask is like in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.errors import InputError
from attncli.masks.mask_grid import MaskGrid
from attncli.text import visible

if TYPE_CHECKING:
    from jaxtyping import Bool, Int


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


class Summary(NamedTuple):
    """One mask in numbers; rows and columns are called by their places.

    Attributes:
        fewest: keys that the query with the fewest may attend to.
        most: keys that the query with the most may attend to.
        first: place of the first visible key, the earliest and the latest over the rows that have one; None where
            none has.
        density: share of the cells that are allowed.
        is_symmetric: whether i may attend to j where j may attend to i; None where rows and columns differ.
        is_causal: whether no query may attend to a key after its position.
        unseen_keys: keys that no query may attend to.
    """

    fewest: int
    most: int
    first: tuple[int, int] | None
    density: float
    is_symmetric: bool | None
    is_causal: bool
    unseen_keys: tuple[int, ...]


def summary(allowed: Bool[np.ndarray, "Q K"], queries: Int[np.ndarray, " Q"], keys: Int[np.ndarray, " K"]) -> Summary:
    """Return a mask (True = attend) in numbers, given the positions of its rows, past included, and of its columns."""
    visible = allowed.sum(axis=1)
    first = allowed.argmax(axis=1)[visible > 0]
    return Summary(
        fewest=int(visible.min()),
        most=int(visible.max()),
        first=(int(first.min()), int(first.max())) if first.size else None,
        density=int(visible.sum()) / allowed.size,
        is_symmetric=bool((allowed == allowed.T).all()) if np.array_equal(queries, keys) else None,
        is_causal=not (allowed & (keys > queries[:, None])).any(),
        unseen_keys=tuple(np.flatnonzero(~allowed.any(axis=0)).tolist()),
    )
