"""Data frames of pandas: a row a cell, as TSV has them, with types."""

import math
import subprocess
import sys
from typing import Any

import pandas
import polars
import pytest

import attncli
from attncli.errors import LoadError
from attncli.formats.columns import CELLS


def rows_of(frame: Any) -> list[dict[str, Any]]:
    return frame.to_dict("records")


def test_a_row_is_a_cell() -> None:
    trace = attncli.inspect("time flies time", num_heads=2)
    frame = trace.to_dataframe()
    assert isinstance(frame, pandas.DataFrame)
    assert tuple(frame.columns) == tuple(name for name in CELLS if name != "sentence")
    tokens = [token.text for token in trace.key_tokens]
    heads = [trace.layer(0).head(index) for index in range(2)]
    expected = [
        {
            "layer": 0, "kind": "self", "head": head.head,
            "query": query, "query_token": tokens[query], "key": key, "key_token": tokens[key],
            "score": head.scores[query, key], "allowed": key <= query, "weight": head.weights[query, key],
        }
        for head in heads for query in range(3) for key in range(3)
    ]  # fmt: skip
    assert rows_of(frame) == polars.from_pandas(frame).to_dicts() == expected
    types = {name: str(kind).lower() for name, kind in zip(frame.columns, frame.dtypes, strict=True)}
    assert (types["score"], types["weight"], types["head"], types["key"]) == ("float32", "float32", "int32", "int32")
    crossed = attncli.inspect("time flies", target="le temps vole", num_heads=4)  # a part has its rows alone
    head = crossed.layer(0).head(2, queries=[1])
    places = [(row["head"], row["query_token"], row["weight"]) for row in rows_of(head.to_dataframe())]
    assert places == [(2, "temps", weight) for weight in head.weights[0]]


def test_nan_stays_nan_and_derived_numbers_have_no_scores() -> None:
    first, *_ = rows_of(attncli.inspect("a\x00 日本 x", num_heads=1, mask="pad(left=1) & causal").to_dataframe())
    assert math.isnan(first["weight"])
    frame = attncli.derive(attncli.inspect("time flies"), norms=True, mean="heads").to_dataframe()
    assert ("score" in frame.columns, "norm" in frame.columns) == (False, True)
    assert {row["head"] for row in rows_of(frame)} == {"mean"}


def test_a_survey_has_a_row_a_head() -> None:
    survey = attncli.heads(["time flies time", "flies"], num_heads=2)
    for row, head in zip(rows_of(survey.to_dataframe()), survey.heads, strict=True):
        assert (row["layer"], row["kind"], row["head"]) == (head.layer, head.kind, head.head)
        assert row["labels"].split(";") == ([label.name for label in head.labels] or [""])
        for name in survey.names:
            value = head.metrics[name]
            assert row[name] == value or (value is None and math.isnan(row[name]))


def test_pandas_is_named_where_it_is_not_there_and_not_imported_before_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = attncli.inspect("time flies", num_heads=1)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(LoadError, match=r"a data frame needs pandas, .* pip install pandas"):
        trace.to_dataframe()
    program = (
        "import sys, attncli; trace = attncli.inspect('a b'); repr(trace); trace._repr_html_(); "
        "print({'pandas', 'matplotlib'} & sys.modules.keys())"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
