"""Counts, means and deviations of many numbers, against Python's own statistics."""

import math

import numpy as np
import pytest

from attncli.analysis.summary import RunningMoments


def moments(*columns: list[float]) -> RunningMoments:
    found = RunningMoments()
    for row in zip(*columns, strict=True):
        found.add(np.array(row, np.float32)[:, None])
    return found


def test_numbers_that_are_all_the_same_are_no_distance_apart() -> None:
    found = moments([0.1] * 1000, [1e8] * 1000)
    assert found.std.tolist() == [[0.0], [0.0]]
    assert found.mean.tolist() == [[float(np.float32(0.1))], [1e8]]


@pytest.mark.parametrize("order", [[math.inf, 1.0, 2.0], [1.0, math.inf, 2.0], [math.nan, math.inf, 3.0]])
def test_an_infinity_makes_the_mean_infinite(order: list[float]) -> None:
    found = moments(order)
    assert found.mean[0, 0] == math.inf
    assert math.isnan(found.std[0, 0])
    both = moments([*order, -math.inf])
    assert math.isnan(both.mean[0, 0])
