"""Parquet: the rows of TSV with types, read back by pyarrow and by DuckDB."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from traces import layer_of, trace_of

import attncli
from attncli.analysis import OF_ANY_TEXT
from attncli.formats import parquet
from attncli.trace.layout import ImageGrid, Picture

Run = Callable[..., Any]

TYPES = {
    "sentence": "int64", "layer": "int32", "kind": "string", "head": "int32", "query": "int32",
    "query_token": "string", "key": "int32", "key_token": "string", "score": "float", "allowed": "bool",
    "weight": "float",
}  # fmt: skip
READ: dict[str, Callable[[str], Any]] = {
    "int64": int, "int32": int, "string": str, "float": float, "bool": lambda text: text == "true"
}  # fmt: skip


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, float) and isinstance(ours, float):
        return ours == pytest.approx(theirs, rel=1e-7, abs=0, nan_ok=True)
    return bool(ours == theirs)


@pytest.mark.parametrize(
    ("options", "most", "types"),
    [
        ([], 1, {}),
        (["--top-keys", "2"], 7, {}),
        (["-m", "demo", "--norms", "--words", "--layer", "all"], 2**18, {"norm": "float"}),
        (["-m", "demo", "--rollout", "--top-keys", "2"], 2**18, {"head": "string"}),
    ],
    ids=lambda options: " ".join(options) if isinstance(options, list) else "",
)
def test_the_rows_are_those_of_tsv(
    attn: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], most: int, types: dict[str, str]
) -> None:
    monkeypatch.setattr(parquet, "_ROWS", most)
    path = tmp_path / "attention.parquet"
    run = ["inspect", "unbelievable flies", "漢字 b", *options]
    tsv, ran = attn(*run, "-F", "tsv"), attn(*run, "-o", path)
    assert (ran.code, ran.out, ran.err) == (0, "", tsv.err)
    assert list(tmp_path.iterdir()) == [path]
    header, *lines = (line.split("\t") for line in tsv.out.splitlines())
    table = pq.read_table(path)
    assert {field.name: str(field.type) for field in table.schema} == {name: (TYPES | types)[name] for name in header}
    for row, line in zip(table.to_pylist(), lines, strict=True):
        for name, text in zip(header, line, strict=True):
            assert same(row[name], READ[(TYPES | types)[name]](text) if text else None), (row, line)
    assert (pq.ParquetFile(path).num_row_groups == 1) == (most > len(lines))
    assert duckdb.sql(f"SELECT count(*) FROM '{path}'").fetchall() == [(len(lines),)]


@pytest.mark.parametrize("ending", ["parquet", "tsv"])
def test_of_metrics_alone_a_row_is_a_head(attn: Run, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"metrics.{ending}"
    texts = ("time flies like an arrow", "a b a")
    ran = attn("inspect", *texts, "-m", "demo", "--layer", "all", "--show", "metrics", "-o", path)
    assert (ran.code, ran.err) == (0, "")
    frame = pd.read_parquet(path) if ending == "parquet" else pd.read_csv(path, sep="\t")
    assert list(frame.columns) == ["sentence", "layer", "kind", "head", "queries", "keys", *OF_ANY_TEXT]
    for number, text in enumerate(texts, 1):
        of_each = attncli.heads(text, model="demo")
        rows = frame[frame["sentence"] == number].reset_index(drop=True)
        for row, head in zip(rows.itertuples(), of_each.heads, strict=True):
            assert (row.layer, row.head) == (head.layer, head.head)
            for name, value in head.metrics.items():
                assert (
                    value is None if pd.isna(rows[name][row.Index]) else rows[name][row.Index] == pytest.approx(value)
                )


def test_rows_of_a_picture_say_which_cell_is_looked_at_and_where_it_lies(attn: Run, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    layer = layer_of(random.normal(size=(2, 9, 4)), random.normal(size=(2, 9, 4)))
    grids = (ImageGrid(1, 2, 3), ImageGrid(7, 1, 2, image=1, side="key"))
    picture = Picture("x.png", 30, 40, np.zeros((4, 3, 3), np.uint8))
    trace = trace_of(layer, pictures=(picture,), grids=grids)
    trace.save(tmp_path / "t.safetensors")
    path = tmp_path / "rows.parquet"
    tsv = attn("inspect", "--from", tmp_path / "t.safetensors", "-F", "tsv")
    assert attn("inspect", "--from", tmp_path / "t.safetensors", "-o", path).code == 0
    table = pq.read_table(path)
    places = ("image", "row", "column", "left", "top", "right", "bottom")
    own = [f"{role}_{name}" for role in ("query", "key") for name in places]
    assert table.column_names == [*TYPES, *own]
    assert {str(table.schema.field(name).type) for name in own} == {"int32", "float"}
    expected = {(role, cell): dict.fromkeys(places) for role in ("query", "key") for cell in range(9)}
    for cell in range(6):
        row, column = divmod(cell, 3)
        values = (0, row, column, 10 * column, 20 * row, 10 * column + 10, 20 * row + 20)
        for role in ("query", "key"):
            expected[role, cell + 1] = dict(zip(places, values, strict=True))
    for column in range(2):  # of a picture whose size nobody knows, and of keys alone
        expected["key", 7 + column] |= {"image": 1, "row": 0, "column": column}
    for row in table.to_pylist():
        for role in ("query", "key"):
            assert {name: row[f"{role}_{name}"] for name in places} == expected[role, row[role]]
    frame = pd.read_csv(io.StringIO(tsv.out), sep="\t")
    assert list(frame.columns) == table.column_names
