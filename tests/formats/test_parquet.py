"""Parquet: the rows of TSV with types, read back by pyarrow and by DuckDB."""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow.parquet as pq
import pytest

import attncli
from attncli import errors
from attncli.analysis.metric_names import OF_ANY_TEXT
from attncli.formats import parquet

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


def test_a_bad_sentence_is_left_out_and_the_exit_code_says_so(attn: Run, tmp_path: Path) -> None:
    path = tmp_path / "attention.parquet"
    ran = attn("inspect", "-o", path, stdin=b"a b\n\xff\nc d\n")
    assert ran.code == 5
    assert set(pq.read_table(path)["sentence"].to_pylist()) == {1, 3}
    assert attn("inspect", "-o", path, stdin=b" \n\xff\n").code == 5
    assert len(pq.read_table(path)) == 0


def test_a_file_may_have_any_name_and_be_a_pipe(attn: Run, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff.parquet")
    ran = attn("tokens", "a b", "-o", path)
    assert (ran.code, ran.err) == (0, "")
    assert len(pq.read_table(io.BytesIO(path.read_bytes()))) > 0
    assert list(tmp_path.iterdir()) == [path]
    pipe = tmp_path / "pipe.parquet"
    os.mkfifo(pipe)
    ends = os.open(pipe, os.O_RDWR)
    assert attn("inspect", "a b", "-o", pipe).err == ""
    assert len(pq.read_table(io.BytesIO(os.read(ends, 65_536)))) == 16
    os.close(ends)


def test_it_needs_a_file_and_pyarrow(attn: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = attn("inspect", "a b", "-F", "parquet")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "attn: --format parquet writes a file; give --output attention.parquet\n"
    monkeypatch.setattr(errors, "not_installed", lambda *packages: packages)
    ran = attn("inspect", "a b", "-o", tmp_path / "x.parquet")
    assert (ran.code, ran.err.count("\n")) == (3, 1)
    assert "install pyarrow" in ran.err
    assert list(tmp_path.iterdir()) == []


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
