"""Windows of pictures in the batch: how many of one picture follow one another, and whether the picture was shifted.

Swin rolls a picture `[B, H, W, C]`, divides it into windows and puts these into the batch: `[B, h, w, …]` becomes
`[B·h·w, …]`, by a view in which the batch comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

_MOST = 8  # sizes of batches that are remembered


class Windows(NamedTuple):
    """Windows in the batch.

    Attributes:
        number: of windows of a picture.
        are_shifted: whether the picture was rolled before.
    """

    number: int
    are_shifted: bool


class Folds:
    """What batches of windows were made of, by how many rows they have."""

    def __init__(self) -> None:
        self._made: dict[int, Windows] = {}
        self._pictures: int | None = None  # of the last roll
        self._is_shifted = False

    def roll(self, pictures: int, is_shifted: bool) -> None:
        """Remember that pictures were rolled, or rolled back."""
        self._pictures, self._is_shifted = pictures, is_shifted

    def fold(self, before: Sequence[int], rows: int) -> None:
        """Remember the axes that were put together to be the batch, if the pictures are known to be the first."""
        count = next((n for n in range(2, len(before) - 1) if prod(before[:n]) == rows), 0)
        if self._pictures is None or count < 2 or before[0] != self._pictures or self._pictures in before[1:count]:
            return
        if len(self._made) >= _MOST:
            self._made.clear()
        self._made[rows] = Windows(prod(before[1:count]), self._is_shifted)
        self._is_shifted = False

    def of(self, rows: int) -> Windows | None:
        """Return the windows in a batch of so many rows."""
        return self._made.get(rows)
