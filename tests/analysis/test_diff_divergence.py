"""The divergence of two rows of weights, against a plain loop and its own laws."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attncli.analysis.diff import jensen_shannon, shared_outcomes

Rows = tuple[list[float], list[float]]

outcomes = st.integers(min_value=1, max_value=7)
masses = st.one_of(st.just(0.0), st.floats(min_value=1e-30, max_value=1.0))


@st.composite
def two_rows(draw: st.DrawFn) -> Rows:
    count = draw(outcomes)
    drawn = [draw(st.lists(masses, min_size=count, max_size=count).filter(any)) for _ in range(2)]
    first, second = ([mass / sum(row) for mass in row] for row in drawn)
    return first, second


def by_hand(first: list[float], second: list[float]) -> float:
    """Return the divergence in bits, by way of entropies: H(mean) − mean of H."""

    def entropy(row: list[float]) -> float:
        return -math.fsum(mass * math.log(mass) / math.log(2) for mass in row if mass > 0)

    middle = [(one + other) / 2 for one, other in zip(first, second, strict=True)]
    return entropy(middle) - (entropy(first) + entropy(second)) / 2


def of(first: list[float], second: list[float]) -> float:
    return float(jensen_shannon(np.array([first]), np.array([second]))[0])


@given(two_rows())
def test_it_is_what_entropies_say_symmetric_and_between_0_and_1(rows: Rows) -> None:
    first, second = rows
    found = of(first, second)
    assert found == pytest.approx(by_hand(first, second), abs=1e-12)
    assert found == of(second, first)
    assert 0 <= found <= 1


@given(two_rows())
def test_it_is_0_for_the_same_and_1_for_nothing_in_common(rows: Rows) -> None:
    first, second = rows
    nothing = [0.0] * len(first)
    assert of(first, first) == 0
    assert of(first + nothing, nothing + second) == pytest.approx(1, abs=1e-12)


@given(two_rows())
def test_joining_two_outcomes_never_makes_it_larger(rows: Rows) -> None:
    """What is elsewhere counts as one cell, so the number shown is never above that of all cells."""
    first, second = ([sum(row[:2]), *row[2:]] for row in rows)
    assert of(first, second) <= of(*rows) + 1e-12


def test_known_values() -> None:
    assert of([0.5, 0.5], [1.0, 0.0]) == pytest.approx(1.5 - 0.75 * math.log2(3))
    rows = np.array([[1.0, 0.0], [0.0, 1.0]])
    np.testing.assert_array_equal(jensen_shannon(rows, rows[:1].repeat(2, axis=0)), [0.0, 1.0])


def test_the_weight_elsewhere_is_one_outcome() -> None:
    weights = np.array([[0.25, 0.5, 0.125, 0.125]], np.float32)
    np.testing.assert_array_equal(shared_outcomes(weights, np.array([1, 3]), False), [[0.5, 0.125, 0.375]])
    np.testing.assert_array_equal(shared_outcomes(weights, np.arange(4), False), [[0.25, 0.5, 0.125, 0.125, 0.0]])


def test_what_a_sink_takes_is_elsewhere_and_what_rounding_takes_is_not() -> None:
    row = np.array([[0.5, 0.495]], np.float32)
    both = np.array([0, 1])
    assert shared_outcomes(row, both, True)[0, -1] == pytest.approx(0.005, abs=1e-7)
    assert shared_outcomes(row, both, False)[0].tolist() == pytest.approx([0.5 / 0.995, 0.495 / 0.995, 0])
    half = np.array([[0.25, 0.25]], np.float32)  # recorded weights of a softmax with a sink that nobody recorded
    np.testing.assert_array_equal(shared_outcomes(half, both, False), [[0.25, 0.25, 0.5]])
