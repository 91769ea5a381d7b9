"""Layers, heads and rows as a user names them, and the heaviest keys of a row against a plain sort."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attncli.errors import UsageError
from attncli.trace.layer import heaviest
from attncli.trace.selection import Indices, RowRange, layer_and_heads


def chosen(choice: object, count: int = 6) -> tuple[int, ...]:
    return Indices.of("head", choice).resolve(count, "layer 2")


@pytest.mark.parametrize(("written", "expected"), [
    ("0", (0,)), ("-6", (0,)), ("2-4", (2, 3, 4)), ("-3-5", (3, 4, 5)), ("2,1-3,2,-5", (2, 1, 3)),
    (" 1 , 3-4 ", (1, 3, 4)), ("005", (5,)), ("all", (0, 1, 2, 3, 4, 5)), (None, (0, 1, 2, 3, 4, 5)), (4, (4,)),
    ([3, -1, 3], (3, 5)), (range(2, 4), (2, 3)), (np.arange(2), (0, 1)),
])  # fmt: skip
def test_a_choice_is_expanded_in_the_order_asked_and_each_once(written: object, expected: tuple[int, ...]) -> None:
    assert chosen(written) == expected


@pytest.mark.parametrize(("written", "end"), [("6", 6), ("-9-2", -9), ([0, -7], -7), ("999999999", 999999999)])
def test_an_index_out_of_range_is_refused_with_the_range(written: object, end: int) -> None:
    with pytest.raises(UsageError) as refused:
        chosen(written)
    assert str(refused.value) == f"--head {end} is out of range: layer 2 has 6 heads, 0..5"
    with pytest.raises(UsageError, match=r"is out of range: the toy layer has 1 layer, 0$"):
        Indices.of("layer", 1).resolve(1, "the toy layer")


@pytest.mark.parametrize("written", ["", "1,", "-", "1--2", "1-2-3", "a", "1.5", "+1", "1\n2", "all,1", "9" * 5000])
def test_what_is_no_choice_is_refused_with_examples(written: str) -> None:
    with pytest.raises(UsageError, match=r"a list or all: 0, 2-4, 0,3,-1, or layer and head: L3H2$"):
        chosen(written)


def test_heads_of_one_layer_may_be_listed_and_no_other_layer_named() -> None:
    assert {layer_and_heads("all", written) for written in ("3.2", "3:2", "L3H2", "l3h2")} == {("3", "2")}
    assert layer_and_heads("3", "L3H2, 3.0") == ("3", "2,0")
    assert layer_and_heads("0-2", "1-3") == ("0-2", "1-3")
    for layers, heads in ((None, "3.2,2.2"), (None, "3.2,1"), ("0", "3.2"), ("2-4", "3.2")):
        with pytest.raises(UsageError, match=r"heads of one layer|layer of every head|--layer names others"):
            layer_and_heads(layers, heads)


WEIGHTS = st.sampled_from([0.0, 0.125, 0.25, 0.5, 1.0, math.nan, math.inf])  # few, so that many are equal


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[list[float]], list[list[bool]]]:
    keys = draw(st.integers(1, 7))
    queries = draw(st.integers(1, 5))

    def matrix(cells: st.SearchStrategy[object]) -> st.SearchStrategy[list[list[object]]]:
        return st.lists(st.lists(cells, min_size=keys, max_size=keys), min_size=queries, max_size=queries)

    return draw(matrix(WEIGHTS)), draw(matrix(st.booleans()))


@given(rows(), st.integers(1, 9))
def test_the_heaviest_keys_begin_a_sorted_row(cells: tuple[list[list[float]], list[list[bool]]], most: int) -> None:
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
