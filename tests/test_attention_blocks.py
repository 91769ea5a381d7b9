"""Blocks of rows: what they give is what the whole gives, and long sentences are never held as a matrix."""

import json
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from traces import layer_of, trace_of

import attncli
from attncli import attention
from attncli.analysis.metrics import head_metrics
from attncli.formats import joined, part_of
from attncli.formats.columns import CELLS
from attncli.formats.json_stream import gathered
from attncli.formats.numbers import as_numbers, rows_as_numbers
from attncli.masks.expressions import ArrayMask, Mask, RuleMask, smallest
from attncli.masks.parser import parse
from attncli.render.heatmap import heatmap_of
from attncli.trace.layer import stages_of
from attncli.trace.tokens import Token, Tokens
from attncli.trace.trace import Trace
from attncli.trace.view import View

QUERIES = 13
ARRAYS = frozenset({"q", "k", "v", "scores", "mask", "weights", "metrics"})
MASKS = ["causal", "full", "window(3)", "causal & ~queries(3,6)", "pad(left=2)", "~full"]


def exact(mask: str = "causal", odd: bool = False) -> Trace:
    """Return a layer whose products are small integers, so that every routine of BLAS gives the same ones."""
    random = np.random.default_rng(0)
    q, k, v = random.integers(-3, 4, (3, 2, QUERIES, 4)).astype(np.float32)
    if odd:
        q[:, 4] = np.inf
        q[:, 7] = np.nan
    tokens = Tokens(Token(place, place % 4, f"w{place % 4}", None, None, place == 0) for place in range(QUERIES))
    return trace_of(layer_of(q, k, v, mask, 0.5), queries=tokens, keys=tokens)


def whole_and_in_blocks(monkeypatch: pytest.MonkeyPatch, cells: int, made: Callable[[], Any]) -> tuple[Any, Any]:
    whole = made()
    with monkeypatch.context() as patched:
        patched.setattr(attention, "CELLS", cells)
        return whole, made()


@pytest.fixture(params=[1, 2 * QUERIES, 5 * QUERIES + 3], ids=["a row", "two rows", "five rows"])
def cells(request: pytest.FixtureRequest) -> int:
    return request.param


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 60))
def test_blocks_are_all_of_the_rows_in_order_and_none_is_too_large(rows: int, columns: int, cells: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(attention, "CELLS", cells)
        parts = attention.row_blocks(np.arange(rows), columns)
    assert np.concatenate(parts).tolist() == list(range(rows))
    assert all(len(part) * columns <= cells or len(part) == 1 for part in parts)


@pytest.mark.parametrize(("cells", "heads"), [(1, 1), (QUERIES**2, 1), (2 * QUERIES**2, 2), (9 * QUERIES**2, 2)])
def test_heads_share_a_block_where_it_has_room_for_all_of_their_cells(
    monkeypatch: pytest.MonkeyPatch, cells: int, heads: int
) -> None:
    monkeypatch.setattr(attention, "CELLS", cells)
    some = list(stages_of(exact().layer(0), (0, 1), np.arange(QUERIES)))
    assert {len(stages.heads) for stages in some} == {heads}
    assert all(stages.weights.size <= cells or len(stages.queries) == 1 for stages in some)


@pytest.mark.parametrize("mask", MASKS)
def test_metrics_of_blocks_are_those_of_the_whole_to_the_last_digit(
    monkeypatch: pytest.MonkeyPatch, cells: int, mask: str
) -> None:
    layer = (trace := exact(mask)).layer(0)
    whole, parts = whole_and_in_blocks(monkeypatch, cells, lambda: head_metrics(trace, layer, layer.head(1)))
    assert parts == whole


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(
    ("mask", "odd", "pool"),
    [
        ("causal", False, (1, 1)),
        ("full", True, (2, 3)),
        ("window(3)", True, (13, 13)),
        ("causal & ~queries(3,6)", True, (5, 1)),
        ("pad(left=2)", False, (2, 3)),
        ("~full", True, (1, 1)),
    ],
)
def test_a_picture_of_blocks_is_that_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, cells: int, mask: str, odd: bool, pool: tuple[int, int]
) -> None:
    layer = exact(mask, odd).layer(0)
    for columns in (slice(None), [1, 5, 2]):
        whole, parts = whole_and_in_blocks(
            monkeypatch, cells, lambda columns=columns: heatmap_of(layer.head(0), columns, pool)
        )
        np.testing.assert_array_equal(parts.values, whole.values)
        np.testing.assert_array_equal(parts.allowed, whole.allowed)
        assert (parts.title, parts.extent) == (whole.title, whole.extent)


def written(name: str, traces: list[Trace], view: View) -> Iterator[str]:
    """Yield what a machine format is of some traces."""
    parts = [(number, part_of(name, number, trace, view)) for number, trace in enumerate(traces, start=1)]
    return joined(name, parts, CELLS)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(("odd", "precision"), [(False, 3), (True, None)])
@pytest.mark.parametrize("name", ["json", "jsonl", "tsv", "csv"])
def test_every_format_writes_blocks_as_the_whole(
    monkeypatch: pytest.MonkeyPatch, cells: int, name: str, odd: bool, precision: int | None
) -> None:
    trace = exact("causal & ~queries(3,6)", odd)
    view = View(show=ARRAYS, keys=("3", "0", "12"), precision=precision)
    whole, parts = whole_and_in_blocks(monkeypatch, cells, lambda: "".join(written(name, [trace, trace], view)))
    assert parts == whole


def test_the_output_of_blocks_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch, cells: int) -> None:
    head = exact().layer(0).head
    whole, parts = whole_and_in_blocks(monkeypatch, cells, lambda: head(0).output)
    np.testing.assert_allclose(parts, whole, rtol=1e-5)


# --- masks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "past"), [((6, 6), 0), ((6, 9), 3), ((6, 9), 0), ((9, 6), 3)])
@pytest.mark.parametrize(
    "mask",
    [*MASKS, "band(0,2)", "prefix(2)", "chunk(2)", "dilated(2,3)", "global(1)", "causal & keys(2,9)",
     "causal | keys(2,3)", "window(2) & chunk(3)", "window(2) | ~causal"],
)  # fmt: skip
def test_blind_queries_are_those_without_a_cell(
    monkeypatch: pytest.MonkeyPatch, mask: str, shape: tuple[int, int], past: int
) -> None:
    queries, keys = shape
    q, k = np.zeros((1, queries, 2), np.float32), np.zeros((1, keys, 2), np.float32)
    rule = RuleMask(parse(mask), queries, keys, 1, past)
    blind = ~rule.rows([0], np.arange(queries)).any(axis=-1)
    forms: list[Mask] = [rule, ArrayMask(rule.rows([0], np.arange(queries)))]
    for form in forms:
        layer = layer_of(q, k, mask=form)
        for found in whole_and_in_blocks(monkeypatch, 8, lambda layer=layer: layer.fully_masked(range(queries))):
            assert found.tolist() == blind.tolist()


def test_the_smallest_form_is_found_without_a_matrix() -> None:
    allowed = np.tri(4096, dtype=bool)[None]
    found, peak = traced(lambda: smallest(allowed, heads=1))
    assert str(found) == "causal"
    assert peak < allowed.nbytes / 2


# --- numbers -----------------------------------------------------------------------------------------------


@given(arrays(np.float32, st.integers(1, 30), elements=st.floats(width=32)))
def test_a_number_is_written_with_the_fewest_digits_that_read_back(values: np.ndarray) -> None:
    for text, value in zip(as_numbers(values, None), values, strict=True):
        np.testing.assert_array_equal(np.float32(text), value)
        assert float(text) == float(str(value)) or np.isnan(value)
    rounded = [f"{value:.2f}" for value in values.tolist()]
    assert as_numbers(values, 2) == rounded


def test_what_is_no_number_is_a_string_beside_numbers() -> None:
    values = np.array([[0.1, np.nan, -np.inf], [np.inf, 1e-7, 0]], np.float32)
    assert json.loads(rows_as_numbers(values, None)) == [[0.1, "nan", "-inf"], ["inf", 1e-7, 0.0]]
    assert json.loads(rows_as_numbers(values, 1)) == [[0.1, "nan", "-inf"], ["inf", 0.0, 0.0]]
    assert rows_as_numbers(values[:, 1:] > 0, 1) == "[[false,false],[true,false]]"
    assert [rows_as_numbers(np.zeros((2, 0), np.float32), precision) for precision in (None, 1)] == ["[[],[]]"] * 2


def test_masked_rows_and_odd_ones_are_right_in_json() -> None:
    (document,) = map(json.loads, written("jsonl", [exact("causal & ~queries(3,4)", odd=True)], View()))
    head = document["layers"][0]["heads"][0]
    assert head["weights"][0] == [1.0] + [0.0] * (QUERIES - 1)
    assert head["weights"][3] == head["weights"][7] == head["scores"][7] == ["nan"] * QUERIES
    assert {type(score) for score in head["scores"][3]} == {float}
    assert set(head["scores"][4]) <= {"nan", "inf", "-inf"}
    assert head["mask"][3] == [False] * QUERIES


# --- memory ------------------------------------------------------------------------------------------------


def traced(made: Callable[[], Any]) -> tuple[Any, int]:
    """Return what is made, and how many bytes were held at most while it was."""
    tracemalloc.start()
    try:
        return made(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def long(tokens: int) -> Trace:
    return attncli.inspect(" ".join(f"w{place % 700}" for place in range(tokens)), heads="0")


@pytest.mark.parametrize("name", ["json", "jsonl", "tsv"])
def test_a_long_sentence_is_written_without_its_matrix(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(attention, "CELLS", 2**16)
    trace = long(1024)
    view = View(show=frozenset({"scores", "mask", "weights", "output", "metrics"}))
    count, peak = traced(lambda: sum(map(len, written(name, [trace], view))))
    assert count > 2 * 1024**2
    assert peak < 1024**2 * 4 * 2


def test_a_long_view_is_pooled_without_its_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "CELLS", 2**18)
    head = long(2048).layer(0).head(0)
    picture, peak = traced(lambda: heatmap_of(head, slice(None), (32, 32)))
    assert picture.values.shape == (64, 64)
    assert peak < 2048**2 * 4


def test_pieces_are_neither_tiny_nor_a_whole_document() -> None:
    def pieces() -> Iterator[str]:
        yield from ("x" * 1000 for _ in range(5000))

    sizes = [len(piece) for piece in gathered(pieces())]
    assert sum(sizes) == 5_000_000
    assert len(sizes) == 5
    assert list(gathered([])) == []
