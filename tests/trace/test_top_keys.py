"""The heaviest keys against a plain sort; ranges of rows against Python's own slices."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from attncli.trace.selection import RowRange
from attncli.trace.top_keys import heaviest

WEIGHTS = st.sampled_from([0.0, 0.125, 0.25, 0.5, 1.0, math.nan, math.inf])  # few, so that many are equal


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[list[float]], list[list[bool]]]:
    keys = draw(st.integers(1, 7))
    queries = draw(st.integers(1, 5))

    def matrix(cells: st.SearchStrategy[object]) -> st.SearchStrategy[list[list[object]]]:
        return st.lists(st.lists(cells, min_size=keys, max_size=keys), min_size=queries, max_size=queries)

    return draw(matrix(WEIGHTS)), draw(matrix(st.booleans()))


@given(rows(), st.integers(1, 9))
def test_the_heaviest_keys_are_the_first_of_a_sorted_row(
    cells: tuple[list[list[float]], list[list[bool]]], most: int
) -> None:
    weights, counted = cells
    found = heaviest(np.array(weights, np.float32), np.array(counted), most)
    for places, row, own in zip(found, weights, counted, strict=True):
        expected = [place for place in range(len(row)) if own[place]]
        # NaN first, then from the largest down, and of equal ones the earlier key.
        expected.sort(key=lambda place: (not math.isnan(row[place]), 0 if math.isnan(row[place]) else -row[place]))
        assert places.tolist() == expected[:most]


ENDS = st.none() | st.integers(-30, 30)


@given(ENDS, ENDS, st.integers(1, 20))
def test_a_range_of_rows_is_a_slice(start: int | None, stop: int | None, count: int) -> None:
    written = f"{'' if start is None else start}:{'' if stop is None else stop}"
    found = RowRange.of(written)
    if written == ":":  # which is a token like any other
        assert found is None
        return
    assert list(found.among(count)) == list(range(count))[start:stop]
    assert str(found) == written
