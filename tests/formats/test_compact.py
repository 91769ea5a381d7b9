"""A row a head: the metrics and weights of a trace, read back by four libraries."""

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from traces import layer_of, tokens_of, trace_of, watched

from attncli.analysis.metric_names import NAMES
from attncli.analysis.metrics import head_metrics
from attncli.errors import InputError, UsageError
from attncli.formats import compact
from attncli.formats.compact import check_compact, tables
from attncli.formats.parquet import typed, write_tables
from attncli.trace.top_keys import TopKeys, top_keys
from attncli.trace.trace import Trace
from attncli.trace.view import View

WORDS = tokens_of("the", "cat", "the", "hat", "sat")
METRICS = frozenset({"metrics"})


@pytest.fixture
def trace() -> Trace:
    """Two layers of three heads, five tokens, causal; one row of the second layer sees nothing."""
    draw = np.random.default_rng(0)

    def q() -> np.ndarray:
        return draw.normal(size=(3, 5, 4)).astype(np.float32)

    return trace_of(
        layer_of(q(), q(), mask="causal"),
        layer_of(q(), q(), mask="causal & ~queries(1,2)", layer=1, heads=(2, 0)),
        queries=WORDS,
        keys=WORDS,
        kept={"id": 7, "label": "a"},
    )


def table_of(trace: Trace, view: View, number: int = 3) -> Any:
    return pa.concat_tables(tables(number, trace, view))


def written(path: Path, *tables: Any) -> Path:
    write_tables(tables, typed({}), path)
    return path


@pytest.mark.parametrize("cells", [1, 60, 2**20])
def test_a_row_is_a_head_with_its_metrics_and_all_its_weights(
    trace: Trace, monkeypatch: pytest.MonkeyPatch, cells: int
) -> None:
    monkeypatch.setattr(compact, "CELLS", cells)
    rows = table_of(trace, View()).to_pylist()
    heads = [(layer, index) for layer in trace.layers for index in layer.heads]
    assert [(row["layer"], row["head"]) for row in rows] == [(layer.layer, index) for layer, index in heads]
    for row, (layer, index) in zip(rows, heads, strict=True):
        assert {name: row[name] for name in ("sentence", "id", "label", "kind", "queries", "keys")} == {
            "sentence": 3, "id": 7, "label": "a", "kind": "self", "queries": 5, "keys": 5,
        }  # fmt: skip
        assert (row["query_tokens"], row["key_tokens"]) == (["the", "cat", "the", "hat", "sat"],) * 2
        expected = head_metrics(trace, layer, layer.head(index))
        for name in NAMES:
            assert row[name] == (None if expected[name] is None else pytest.approx(expected[name], rel=1e-6)), name
        own = np.array(row["weights"], np.float16).reshape(5, 5)
        np.testing.assert_array_equal(own, layer.head(index).weights.astype(np.float16))


@pytest.mark.parametrize("most", [1, 2, 5, 9])
def test_the_heaviest_keys_are_those_of_every_other_view(trace: Trace, most: int) -> None:
    for row in table_of(trace, View(top_keys=most)).to_pylist():
        head = trace.layer(row["layer"]).head(row["head"])
        keys, weights = (np.array(row[name]).reshape(5, min(most, 5)) for name in ("top_keys", "weights"))
        for query, (places, heaviest) in enumerate(top_keys(head, slice(None), TopKeys(most))):
            if np.isnan(heaviest).any():
                assert np.isnan(weights[query]).all()
                continue
            assert keys[query, : len(places)].tolist() == places.tolist()
            np.testing.assert_array_equal(weights[query, : len(places)], heaviest.astype(np.float16))
            assert not weights[query, len(places) :].any()
            assert sorted({*keys[query].tolist(), *places.tolist()}) == sorted(keys[query].tolist())


def test_equal_negative_and_undefined_weights_have_their_order() -> None:
    weights = [[0.25, 0.5, 0.25, 0.0], [-0.5, 0.0, 1.0, 0.5], [float("nan")] * 4, [0.1, 0.2, 0.3, 0.4]]
    allowed = np.ones((4, 4), bool)
    allowed[1, 1] = allowed[0, 3] = False
    (row,) = table_of(trace_of(watched(np.zeros((4, 4)), weights, allowed)), View(top_keys=4)).to_pylist()
    assert np.array(row["top_keys"]).reshape(4, 4).tolist() == [[1, 0, 2, 3], [2, 3, 0, 1], [0, 1, 2, 3], [3, 2, 1, 0]]


def test_of_a_long_row_the_heaviest_keys_are_found() -> None:
    draw = np.random.default_rng(1)
    weights = draw.integers(0, 50, (40, 300)).astype(np.float32)  # many are equal
    (row,) = table_of(trace_of(watched(np.zeros((40, 300)), weights, kind="cross")), View(top_keys=7)).to_pylist()
    expected = np.argsort(-weights, axis=1, kind="stable")[:, :7]
    assert np.array(row["top_keys"]).reshape(40, 7).tolist() == expected.tolist()


def test_what_is_shown_chooses_the_columns(trace: Trace) -> None:
    place = ["sentence", "id", "label", "layer", "kind", "head", "queries", "keys"]
    assert table_of(trace, View(show=METRICS)).schema.names == [*place, *NAMES]
    of_weights = View(show=frozenset({"weights", "tokens"}), top_keys=1)
    assert table_of(trace, of_weights).schema.names == [*place, "query_tokens", "key_tokens", "top_keys", "weights"]


@pytest.mark.parametrize("view", [View(), View(top_keys=2), View(show=METRICS)])
def test_four_libraries_read_the_same(trace: Trace, tmp_path: Path, view: View) -> None:
    found = [table_of(trace, view, number) for number in (1, 2)]
    path = str(written(tmp_path / "x.parquet", *found))
    expected = pa.concat_tables(found).to_pandas()
    for read in (pq.read_table(path).to_pandas(), duckdb.sql(f"FROM '{path}'").df(), pl.read_parquet(path).to_pandas()):
        pd.testing.assert_frame_equal(read, expected, check_dtype=False)
    pd.testing.assert_frame_equal(pd.read_parquet(path), expected, check_dtype=False)


def test_what_is_kept_has_a_type_that_holds_it(trace: Trace, tmp_path: Path) -> None:
    def kept(**values: Any) -> Any:
        from dataclasses import replace

        return table_of(replace(trace, kept=values), View(show=METRICS))

    given: list[dict[str, Any]] = [
        {"n": None, "f": 1, "t": 1, "b": True, "o": None},
        {"n": 2, "f": 1.5, "t": "x", "b": None, "o": None},
    ]
    read = pq.read_table(written(tmp_path / "x.parquet", *(kept(**values) for values in given)))
    assert {name: str(read.schema.field(name).type) for name in "nftbo"} == {
        "n": "int64", "f": "double", "t": "string", "b": "bool", "o": "string",
    }  # fmt: skip
    assert read.select(["n", "f", "t", "b", "o"]).to_pylist()[:: len(read) - 1] == [
        {"n": None, "f": 1.0, "t": "1", "b": True, "o": None},
        {"n": 2, "f": 1.5, "t": "x", "b": None, "o": None},
    ]


def test_what_is_kept_later_is_of_the_type_of_what_was_kept_before(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    monkeypatch.setattr("attncli.formats.parquet._ROWS", 1)  # each table is a row group
    found = [table_of(replace(trace, kept={"id": one}), View(show=METRICS)) for one in (1, None, "2", "x")]
    read = pq.read_table(written(tmp_path / "fits.parquet", *found[:3]))
    assert read["id"].to_pylist()[::5] == [1, None, 2]
    with pytest.raises(InputError, match="sentences 3 to 3: what is kept of them is of another type"):
        written(tmp_path / "x.parquet", *found)
    with pytest.raises(UsageError, match="--keep head: the rows have a column head of their own"):
        table_of(replace(trace, kept={"head": 1}), View())


def test_what_a_row_has_no_place_for_is_refused() -> None:
    with pytest.raises(UsageError, match="--show scores does not apply to --compact, which keeps tokens, metrics"):
        check_compact(View(show=frozenset({"scores", "weights"})), is_derived=False)
    with pytest.raises(UsageError, match="--query does not apply to --compact, which keeps whole heads"):
        check_compact(View(queries=("a",)), is_derived=False)
    with pytest.raises(UsageError, match="it goes without --words"):
        check_compact(View(), is_derived=True)
    check_compact(View(top_keys=3, show=METRICS), is_derived=False)


def test_a_row_that_no_list_holds_is_refused(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "_MOST", 25)
    with pytest.raises(InputError, match="5 queries × 5 keys are more weights than a row holds; give --top-keys N"):
        table_of(trace, View())
    assert len(table_of(trace, View(top_keys=4))) == 5
