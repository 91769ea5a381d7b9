"""Statistics of many numbers at once, as states that merge: what parts of a corpus give is what the whole gives.

A state holds how many numbers there were, their mean and squared distances from it, the least, the greatest, and how
many fell into each bucket of a sketch, from which any quantile can be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import atan2, cos, pi, sin, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float, Int

QUANTILES = (0.05, 0.5, 0.95)
ACCURACY = 0.01
"""How far a quantile of a sketch may be from the number that has that rank, as a share of it."""


@dataclass(frozen=True)
class Moments:
    """Counts, means and squared distances from the means of cells of numbers (Chan, Golub and LeVeque 1979).

    An infinity among the numbers makes the mean infinite, and NaN beside the other one; the distances are then NaN.

    Attributes:
        count: how many numbers there were.
        mean: of them; 0 where there were none.
        rest: what is left of the mean, which has more digits than its type, so that large numbers close together merge.
        m2: the sum of squared distances from the mean.
    """

    count: Int[np.ndarray, "H M"]
    mean: Float[np.ndarray, "H M"]
    rest: Float[np.ndarray, "H M"]
    m2: Float[np.ndarray, "H M"]

    @classmethod
    def of(cls, values: Float[np.ndarray, "S H M"]) -> Moments:
        """Return the moments of each cell over the first axis; NaN is a number that is not defined."""
        defined = ~np.isnan(values)
        count = defined.sum(axis=0)
        divisor = np.maximum(count, 1)
        with np.errstate(invalid="ignore"):
            mean = np.where(defined, values, 0.0).sum(axis=0, dtype=float) / divisor
            # Once more from there: numbers that are all the same are then no distance apart.
            mean = mean + np.where(defined & np.isfinite(mean), values - mean, 0.0).sum(axis=0) / divisor
            apart = np.where(defined, values - mean, 0.0)
            rest = apart.sum(axis=0) / divisor
            m2 = np.square(apart).sum(axis=0) - np.square(rest) * divisor
        return cls(count, mean, np.where(np.isfinite(mean), rest, 0.0), np.maximum(m2, 0.0))

    def merged(self, other: Moments) -> Moments:
        """Return the moments of the numbers of both."""
        count = self.count + other.count
        share = other.count / np.maximum(count, 1)
        with np.errstate(invalid="ignore"):
            apart = (other.mean - self.mean) + (other.rest - self.rest)
            step = share * apart
            mean = self.mean + step
            back = mean - self.mean
            lost = (self.mean - (mean - back)) + (step - back)  # by rounding that sum (Knuth 1969)
            rest = self.rest + lost
            m2 = self.m2 + other.m2 + apart * step * self.count
            # From an infinite mean there is no way back, and no distance.
            is_finite = np.isfinite(apart)
            whole = Moments(
                count,
                np.where(is_finite, mean, self.mean + other.mean),
                np.where(is_finite, rest, 0.0),
                np.where(is_finite, m2, np.nan),
            )
        return whole._filled(self, other)

    def _filled(self, first: Moments, second: Moments) -> Moments:
        """Return the moments with what one of the two has alone as it was."""

        def chosen(whole: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
            return np.where(second.count == 0, one, np.where(first.count == 0, other, whole))

        names = ("mean", "rest", "m2")
        return Moments(
            self.count, *(chosen(*(getattr(each, name) for each in (self, first, second))) for name in names)
        )

    @property
    def means(self) -> Float[np.ndarray, "H M"]:
        """The mean of each cell; NaN where there is no number."""
        return np.where(self.count > 0, self.mean, np.nan)

    @property
    def std(self) -> Float[np.ndarray, "H M"]:
        """The sample standard deviation (n − 1) of each cell; NaN where there are fewer than two numbers."""
        return np.where(self.count > 1, np.sqrt(self.m2 / np.maximum(self.count - 1, 1)), np.nan)

    @property
    def margin(self) -> Float[np.ndarray, "H M"]:
        """How far the ends of the 95 % confidence interval of the mean are from it, by Student's t; NaN as `std`."""
        counts, places = np.unique(self.count, return_inverse=True)
        factors = np.array([student(int(count) - 1) if count > 1 else np.nan for count in counts])
        return factors[places].reshape(self.count.shape) * self.std / np.sqrt(np.maximum(self.count, 1))


@dataclass(frozen=True)
class Sketch:
    """How many numbers fell into which bucket, of all cells in two arrays: DDSketch.

    Masson, Rim and Lee 2019, "DDSketch: a fast and fully-mergeable quantile sketch with relative-error guarantees":
    bucket k holds what is in (γ^(k−1), γ^k], where γ = (1 + ACCURACY) / (1 − ACCURACY). Its code is k + 8192, that of
    the same bucket below zero −k − 8192, that of zero 0, those of infinities ±16383: codes have the numbers' order.

    Attributes:
        places: what is not empty, in order: 65536 · cell + 32768 + code.
        counts: how many numbers are there.
    """

    places: Int[np.ndarray, " B"]
    counts: Int[np.ndarray, " B"]

    @classmethod
    def of(cls, values: Float[np.ndarray, "S C"]) -> Sketch:
        """Return the sketch of each cell over the first axis; NaN is a number that is not defined."""
        with np.errstate(divide="ignore", invalid="ignore"):
            keys = np.ceil(np.log(np.abs(values, dtype=float)) / _LOG_GAMMA)
        codes = np.copysign(np.clip(keys + _ZERO, 1, _INFINITE), values)
        codes[values == 0] = 0
        places = codes + (np.arange(values.shape[1]) * _CODES + _CODES // 2)
        return cls(*np.unique(places[~np.isnan(values)].astype(np.int64), return_counts=True))

    @classmethod
    def joined(
        cls, cells: Int[np.ndarray, " B"], codes: Int[np.ndarray, " B"], counts: Int[np.ndarray, " B"]
    ) -> Sketch:
        """Return the sketch of buckets, by their cells and codes in order."""
        return cls(cells * _CODES + _CODES // 2 + codes, counts)

    def split(self) -> tuple[Int[np.ndarray, " B"], Int[np.ndarray, " B"]]:
        """Return the cell and the code of each bucket."""
        return self.places // _CODES, self.places % _CODES - _CODES // 2

    def merged(self, other: Sketch) -> Sketch:
        """Return the sketch of the numbers of both."""
        places = np.concatenate([self.places, other.places])
        if not len(places):
            return self
        order = np.argsort(places, kind="stable")  # which merges what is sorted
        places = places[order]
        first = np.flatnonzero(np.diff(places, prepend=-1))
        return Sketch(places[first], np.add.reduceat(np.concatenate([self.counts, other.counts])[order], first))

    def quantile(self, share: float, cells: int) -> Float[np.ndarray, " C"]:
        """Return the number of rank share · (n − 1) of each cell; NaN where there is none."""
        of_cells, of_buckets = self.split()
        ends = np.concatenate([[0], np.cumsum(self.counts)])
        edges = ends[np.searchsorted(of_cells, np.arange(cells + 1))]
        count = np.diff(edges)
        found = np.searchsorted(ends, edges[:-1] + np.floor(share * (count - 1)), side="right") - 1
        codes = np.full(cells, np.nan)
        codes[count > 0] = of_buckets[found[count > 0]]
        sizes = np.exp((np.abs(codes) - _ZERO) * _LOG_GAMMA) * (1 - ACCURACY)  # between both ends, as far from each
        return np.where(codes == 0, 0.0, np.sign(codes) * np.where(np.abs(codes) == _INFINITE, np.inf, sizes))


_LOG_GAMMA = float(np.log1p(ACCURACY) - np.log1p(-ACCURACY))
_CODES = 2**16  # of a cell
_ZERO = 2**13  # more than the bucket of the least float32 is below that of 1
_INFINITE = 2**14 - 1


@dataclass(frozen=True)
class Statistics:
    """All that is known of the numbers of cells; two of them merge into that of all numbers.

    Attributes:
        moments: counts, means and deviations.
        least: the least number of each cell; NaN where there is none.
        greatest: likewise.
        sketch: of the cells, row by row.
    """

    moments: Moments
    least: Float[np.ndarray, "H M"]
    greatest: Float[np.ndarray, "H M"]
    sketch: Sketch

    @classmethod
    def of(cls, values: Float[np.ndarray, "S H M"]) -> Statistics:
        """Return the statistics of each cell over the first axis; NaN is a number that is not defined."""
        least, greatest = np.fmin.reduce(values).astype(float), np.fmax.reduce(values).astype(float)
        return cls(Moments.of(values), least, greatest, Sketch.of(values.reshape(len(values), -1)))

    def merged(self, other: Statistics) -> Statistics:
        """Return the statistics of the numbers of both."""
        return Statistics(
            self.moments.merged(other.moments),
            np.fmin(self.least, other.least),
            np.fmax(self.greatest, other.greatest),
            self.sketch.merged(other.sketch),
        )

    def quantiles(self, shares: Sequence[float] = QUANTILES) -> Float[np.ndarray, "N H M"]:
        """Return for each share the number that has this rank among those of a cell, within `ACCURACY` of it."""
        found = [self.sketch.quantile(share, self.least.size).reshape(self.least.shape) for share in shares]
        return np.clip(found, self.least, self.greatest)


def settled(values: Float[np.ndarray, "H M"]) -> Float[np.ndarray, "H M"]:
    """Return numbers to 40 binary digits: the last ones depend on the order in which they were added up.

    The mean of two float32s is often just between two float32s, and the last digit of all decides which one it becomes.
    """
    digits, exponents = np.frexp(values)
    return np.ldexp(np.round(digits * 2.0**40) / 2.0**40, exponents)


@lru_cache(4096)
def student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t distribution, to 1e-7.

    Up to 40 degrees of freedom it is sought in the distribution, whose sum is finite, and beyond in the expansion by
    those of the normal one (Abramowitz and Stegun 1964, 26.7.3, 26.7.4 and 26.7.5).
    """
    z = NormalDist().inv_cdf(0.975)
    if freedom > 40:
        terms = (
            (z**3 + z) / 4,
            (5 * z**5 + 16 * z**3 + 3 * z) / 96,
            (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
            (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
        )
        return z + sum(term / freedom**power for power, term in enumerate(terms, start=1))
    low, high = z, 13.0  # that of one degree is 12.7
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < 0.95 else (low, middle)
    return high


def _within(distance: float, freedom: int) -> float:
    """Return the share of Student's t distribution that is not farther than this from 0."""
    angle = atan2(distance, sqrt(freedom))
    is_odd = freedom % 2
    term, total = (cos(angle), 0.0) if is_odd else (1.0, 0.0)
    for power in range(1 + is_odd, freedom, 2):
        total += term
        term *= cos(angle) ** 2 * power / (power + 1)
    return 2 / pi * (angle + sin(angle) * total) if is_odd else sin(angle) * total
