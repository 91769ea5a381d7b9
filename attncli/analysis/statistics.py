"""Running means and deviations of arrays of numbers, and the tail of a binomial distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float, Int


def binomial_tail(hits: int, trials: int, chance: float) -> float:
    """Return the probability of at least this number of hits."""
    if not 0 < chance < 1:
        return float(hits <= trials * chance)
    logarithms = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, trials + 1)))])  # of factorials
    counts = np.arange(hits, trials + 1)
    ways = logarithms[trials] - logarithms[counts] - logarithms[trials - counts]
    return float(np.exp(ways + counts * np.log(chance) + (trials - counts) * np.log1p(-chance)).sum())


class RunningMoments:
    """Counts, means and standard deviations of cells of numbers, summed in float64 in the order in which they come.

    NaN is a number that is not defined. What is summed is the distance from the first finite number of each cell, so
    that numbers which are all the same are no distance apart, and large ones close together lose no digits.

    Attributes:
        count: how many numbers of each cell are defined.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count: Int[np.ndarray, "H M"] = np.zeros(shape, np.int64)
        self._origin = np.full(shape, np.nan)
        self._sum, self._squares = np.zeros(shape), np.zeros(shape)

    def add(self, values: Float[np.ndarray, "H M"]) -> None:
        """Count the numbers of one sentence."""
        defined = ~np.isnan(values)
        self._origin = np.where(np.isnan(self._origin) & np.isfinite(values), values, self._origin)
        apart = np.where(defined, values - np.nan_to_num(self._origin), 0.0)
        self.count += defined
        with np.errstate(invalid="ignore"):  # the sum of both infinities
            self._sum += apart
            self._squares += np.square(apart)

    @property
    def mean(self) -> Float[np.ndarray, "H M"]:
        """The mean of each cell; NaN where there is no number."""
        mean = np.nan_to_num(self._origin) + self._sum / np.maximum(self.count, 1)
        return np.where(self.count > 0, mean, np.nan)

    @property
    def std(self) -> Float[np.ndarray, "H M"]:
        """The sample standard deviation (n − 1) of each cell; NaN where there are fewer than two numbers."""
        with np.errstate(invalid="ignore"):  # an infinity is any distance from the others
            squares = np.maximum(self._squares - np.square(self._sum) / np.maximum(self.count, 1), 0.0)
        return np.where(self.count > 1, np.sqrt(squares / np.maximum(self.count - 1, 1)), np.nan)
