"""Counts, means and deviations of many numbers, against Python's own statistics."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attncli.analysis.statistics import RunningMoments

finite = st.floats(-1e6, 1e6, width=32)
numbers = st.lists(finite | st.just(math.nan), max_size=12)


def moments(*columns: list[float]) -> RunningMoments:
    found = RunningMoments((len(columns), 1))
    for row in zip(*columns, strict=True):
        found.add(np.array(row, np.float32)[:, None])
    return found


@settings(max_examples=80)
@given(numbers)
def test_every_number_is_that_of_a_plain_loop(values: list[float]) -> None:
    found = moments(values)
    defined = [value for value in values if not math.isnan(value)]
    assert found.count[0, 0] == len(defined)
    mean, std = found.mean[0, 0], found.std[0, 0]
    scale = max(map(abs, defined), default=1.0) or 1.0
    assert math.isnan(mean) if not defined else mean == pytest.approx(statistics.fmean(defined), abs=1e-9 * scale)
    if len(defined) < 2:
        assert math.isnan(std)
    else:
        assert std == pytest.approx(statistics.stdev(defined), rel=1e-6, abs=1e-9 * scale)


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
