"""Data frames of pandas and polars: a row a cell, as TSV has them, with types."""

import math
import subprocess
import sys
from typing import Any, Literal

import pandas
import polars
import pytest

import attncli
from attncli.errors import LoadError, UsageError
from attncli.formats.columns import CELLS

Library = Literal["pandas", "polars"]
LIBRARIES: tuple[Library, ...] = ("pandas", "polars")


def rows_of(frame: Any) -> list[dict[str, Any]]:
    return frame.to_dicts() if isinstance(frame, polars.DataFrame) else frame.to_dict("records")


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_row_is_a_cell(library: Library) -> None:
    trace = attncli.inspect("time flies time", num_heads=2)
    frame = trace.to_dataframe(library)
    assert type(frame).__module__.split(".")[0] == library
    assert tuple(frame.columns) == tuple(name for name in CELLS if name != "sentence")
    tokens = [token.text for token in trace.key_tokens]
    heads = [trace.layer(0).head(index) for index in range(2)]
    assert rows_of(frame) == [
        {
            "layer": 0, "kind": "self", "head": head.head,
            "query": query, "query_token": tokens[query], "key": key, "key_token": tokens[key],
            "score": head.scores[query, key], "allowed": key <= query, "weight": head.weights[query, key],
        }
        for head in heads for query in range(3) for key in range(3)
    ]  # fmt: skip
    types = {name: str(kind).lower() for name, kind in zip(frame.columns, frame.dtypes, strict=True)}
    assert types["score"] == types["weight"] == "float32"
    assert types["head"] == types["key"] == "int32"
    crossed = attncli.inspect("time flies", target="le temps vole", num_heads=4)  # a part has its rows alone
    head = crossed.layer(0).head(2, queries=[1])
    rows = rows_of(head.to_dataframe(library))
    places = [(row["head"], row["query_token"], row["key_token"], row["weight"]) for row in rows]
    assert places == [(2, "temps", key, weight) for key, weight in zip(("time", "flies"), head.weights[0], strict=True)]


@pytest.mark.parametrize("library", LIBRARIES)
def test_tokens_are_whole_nan_stays_nan_and_derived_numbers_have_no_scores(library: Library) -> None:
    trace = attncli.inspect("a\x00 日本 \u202e x", num_heads=1, mask="pad(left=1) & causal")
    tokens = [token.text for token in trace.key_tokens]
    first, *others = rows_of(trace.to_dataframe(library))
    assert list(dict.fromkeys(row["key_token"] for row in (first, *others))) == list(dict.fromkeys(tokens))
    assert first["weight"] is not None
    assert math.isnan(first["weight"])
    frame = attncli.derive(attncli.inspect("time flies"), norms=True, mean="heads").to_dataframe(library)
    assert ("score" in frame.columns, "norm" in frame.columns) == (False, True)
    assert {row["head"] for row in rows_of(frame)} == {"mean"}


def test_a_survey_has_a_row_a_head() -> None:
    survey = attncli.heads(["time flies time", "flies"], num_heads=2)
    frames = (rows_of(survey.to_dataframe(library)) for library in LIBRARIES)
    for row, own, head in zip(*frames, survey.heads, strict=True):
        assert (row["layer"], row["kind"], row["head"]) == (head.layer, head.kind, head.head)
        assert own["label"] == (head.labels[0].name if head.labels else "")
        assert own["label_score"] == (head.labels[0].score if head.labels else None)
        assert own["labels"].split(";") == ([label.name for label in head.labels] or [""])
        for name in survey.names:
            value = head.metrics[name]
            assert row[name] == value or (value is None and math.isnan(row[name]))
            assert (own[name], own[f"{name}_std"], own[f"{name}_count"]) == (value, head.std[name], head.counts[name])


def test_the_library_that_is_there_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = attncli.inspect("time flies", num_heads=1)
    assert isinstance(trace.to_dataframe(), pandas.DataFrame)
    monkeypatch.delitem(sys.modules, "pandas")
    assert isinstance(trace.to_dataframe(), polars.DataFrame)
    monkeypatch.delitem(sys.modules, "polars")
    monkeypatch.setattr("attncli.formats.frames.find_spec", lambda name: None)
    with pytest.raises(LoadError, match=r"a data frame needs pandas or polars: .*install pandas"):
        trace.to_dataframe()
    with pytest.raises(LoadError, match=r"a data frame needs polars: .*install polars"):
        trace.to_dataframe("polars")
    with pytest.raises(UsageError, match="expected pandas or polars"):
        trace.to_dataframe("dask")  # type: ignore[call-overload]


def test_neither_library_is_imported_before_it_is_needed() -> None:
    program = (
        "import sys, attncli; trace = attncli.inspect('a b'); repr(trace); trace._repr_html_(); "
        "print({'pandas', 'polars', 'matplotlib'} & sys.modules.keys())"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
