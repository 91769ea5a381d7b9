"""Statistics that merge: any split of numbers gives what the whole gives, and both what plain loops give."""

import math
from fractions import Fraction

import numpy as np
import pytest
from ddsketch import DDSketch
from hypothesis import given, settings
from hypothesis import strategies as st

from attncli.analysis.statistics import ACCURACY, QUANTILES, Sketch, Statistics, student

SHARES = (0.0, 0.05, 0.25, 0.5, 0.95, 1.0)

small = st.floats(-1e3, 1e3, width=32)
weights = st.floats(0, 1, width=32)
odd = st.sampled_from([math.nan, math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, -3e38, 3e38])


@st.composite
def cells(draw: st.DrawFn) -> tuple[list[list[float]], list[int]]:
    """The numbers of some cells, as many of each, and where they are cut into parts."""
    count = draw(st.integers(1, 12))
    offset = draw(st.sampled_from([0.0, 0.0, 1e3, -1e8, 1e12]))
    kinds = (
        weights,
        small.map(lambda value: value + offset),
        st.one_of(small, odd.filter(math.isfinite)),
        st.one_of(weights, odd),
        st.just(draw(small)),
        st.just(math.nan),
        st.one_of(weights, st.just(math.nan)),
    )
    numbers = [draw(st.lists(kind, min_size=count, max_size=count)) for kind in kinds]
    return numbers, sorted(draw(st.lists(st.integers(1, count), max_size=4)))


def whole_and_merged(numbers: list[list[float]], cuts: list[int]) -> tuple[Statistics, Statistics]:
    values = np.array(numbers).T[:, :, None]  # sentences, heads, one metric
    first, *others = (Statistics.of(part) for part in np.split(values, cuts) if len(part))
    for other in others:
        first = first.merged(other)
    return Statistics.of(values), first


@settings(max_examples=80)
@given(cells())
def test_any_split_merges_to_the_whole_and_both_are_those_of_plain_loops(
    case: tuple[list[list[float]], list[int]],
) -> None:
    numbers, cuts = case
    for found in whole_and_merged(numbers, cuts):
        quantiles = found.quantiles(SHARES)
        for head, given_ in enumerate(numbers):
            defined = sorted(value for value in given_ if not math.isnan(value))
            mean, std = found.moments.means[head, 0], found.moments.std[head, 0]
            assert found.moments.count[head, 0] == len(defined)
            if not defined:
                assert all(map(math.isnan, [mean, std, found.least[head, 0], *quantiles[:, head, 0]]))
                continue
            assert (found.least[head, 0], found.greatest[head, 0]) == (defined[0], defined[-1])
            for share, value in zip(SHARES, quantiles[:, head, 0], strict=True):
                exact = defined[math.floor(share * (len(defined) - 1))]
                assert value == exact or abs(value - exact) <= ACCURACY * abs(exact) * (1 + 1e-9)
            if not all(map(math.isfinite, defined)):
                total = sum(defined)
                assert math.isnan(std)
                assert mean == total or (math.isnan(mean) and math.isnan(total))
                continue
            exact_mean = sum(map(Fraction, defined)) / len(defined)
            assert abs(Fraction(mean) - exact_mean) <= Fraction(1e-12) * max(abs(Fraction(value)) for value in defined)
            if len(defined) == 1:
                assert math.isnan(std)
                continue
            variance = sum((Fraction(value) - exact_mean) ** 2 for value in defined) / (len(defined) - 1)
            assert std == pytest.approx(math.sqrt(variance), rel=1e-9, abs=0)


@settings(max_examples=60)
@given(cells())
def test_merged_counts_extremes_and_buckets_are_the_very_same(case: tuple[list[list[float]], list[int]]) -> None:
    whole, merged = whole_and_merged(*case)
    for one, other in (
        (whole.moments.count, merged.moments.count),
        (whole.least, merged.least),
        (whole.greatest, merged.greatest),
        (whole.sketch.places, merged.sketch.places),
        (whole.sketch.counts, merged.sketch.counts),
        (whole.quantiles(SHARES), merged.quantiles(SHARES)),
    ):
        np.testing.assert_array_equal(one, other)


@settings(max_examples=60)
@given(st.lists(st.one_of(small, weights), min_size=1, max_size=50))
def test_the_sketch_is_that_of_datadog_s_library(values: list[float]) -> None:
    theirs = DDSketch(ACCURACY)
    for value in values:
        theirs.add(value)
    ours = Sketch.of(np.array(values)[:, None])
    for share in SHARES:
        assert ours.quantile(share, 1)[0] == pytest.approx(theirs.get_quantile_value(share), rel=1e-9)


# The table of the NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2.
@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (9, 2.262), (10, 2.228), (40, 2.021), (41, 2.020), (60, 2.000), (100, 1.984)],
)
def test_student_s_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert student(freedom) == pytest.approx(quantile, abs=5e-4)


def test_student_s_quantiles_do_not_jump_where_the_expansion_begins() -> None:
    steps = np.diff([student(freedom) for freedom in range(30, 50)])
    assert (np.diff(steps) > 0).all()
    assert student(10**9) == pytest.approx(1.959963985, abs=1e-8)


def test_the_interval_of_the_mean_is_that_of_a_known_example() -> None:
    # Student's own: hours of sleep gained by ten patients ("The probable error of a mean", 1908); R's t.test(extra).
    gained = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    moments = Statistics.of(np.array(gained)[:, None, None]).moments
    assert moments.means[0, 0] == pytest.approx(2.33)
    assert (moments.means - moments.margin)[0, 0] == pytest.approx(0.8976775, abs=1e-6)
    assert (moments.means + moments.margin)[0, 0] == pytest.approx(3.7623225, abs=1e-6)


def test_the_quantiles_that_are_shown() -> None:
    values = np.arange(1, 101, dtype=float)[:, None, None]
    assert Statistics.of(values).quantiles()[:, 0, 0] == pytest.approx([5, 50, 95], rel=ACCURACY)
    assert QUANTILES == (0.05, 0.5, 0.95)
