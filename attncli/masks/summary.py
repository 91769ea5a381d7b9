"""What a mask looks like in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Bool, Int


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
    """Return a mask in numbers.

    Args:
        allowed: True = attend.
        queries: the position of each row, past included.
        keys: the position of each column.
    """
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
