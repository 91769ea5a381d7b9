"""Blocks of rows: what they give is what the whole gives, and long sentences are never held as a matrix."""

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import layer_of, trace_of

import attncli
from attncli import attention
from attncli.formats import joined, part_of
from attncli.formats.columns import CELLS
from attncli.masks.expressions import ArrayMask, Mask, RuleMask
from attncli.masks.parser import parse
from attncli.trace.layer import stages_of
from attncli.trace.tokens import Token, Tokens
from attncli.trace.trace import Trace
from attncli.trace.view import View

QUERIES = 13
ARRAYS = frozenset({"q", "k", "v", "scores", "mask", "weights", "metrics"})
MASKS = ["causal", "full", "causal & ~queries(3,6)", "pad(left=2)", "~full"]


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


@pytest.fixture(params=[1, 5 * QUERIES + 3], ids=["a row", "five rows"])
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


# --- masks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "past"), [((6, 6), 0), ((6, 9), 0), ((9, 6), 3)])
@pytest.mark.parametrize("mask", [*MASKS, "band(0,2)", "causal | prefix(2)", "global(1)", "causal | keys(2,3)"])
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


# --- numbers -----------------------------------------------------------------------------------------------


# --- memory ------------------------------------------------------------------------------------------------


def traced(made: Callable[[], Any]) -> tuple[Any, int]:
    """Return what is made, and how many bytes were held at most while it was."""
    tracemalloc.start()
    try:
        return made(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def long(tokens: int) -> Trace:
    return attncli.inspect(" ".join(f"w{place % 700}" for place in range(tokens)), head="0")


@pytest.mark.parametrize("name", ["json", "jsonl", "tsv"])
def test_a_long_sentence_is_written_without_its_matrix(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(attention, "CELLS", 2**16)
    trace = long(1024)
    view = View(show=frozenset({"scores", "mask", "weights", "output", "metrics"}))
    count, peak = traced(lambda: sum(map(len, written(name, [trace], view))))
    assert count > 2 * 1024**2
    assert peak < 1024**2 * 4 * 2
