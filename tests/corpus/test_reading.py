"""Sentences out of every kind of file, beside what pandas, polars, DuckDB and the standard library read of it."""

import bz2
import csv
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import EXPECTED, IDS, PACK, TEXTS, bad, read, texts
from hypothesis import given
from hypothesis import strategies as st

from attncli.corpus.reading import Corpus
from attncli.errors import Failure, InputError, UsageError


def with_pandas(path: Path, frame: pd.DataFrame) -> None:
    match path.suffix:
        case ".csv":
            frame.to_csv(path, index=False)
        case ".tsv":
            frame.to_csv(path, index=False, sep="\t")
        case ".parquet":
            frame.to_parquet(path)
        case _:
            frame.to_json(path, orient="records", lines=True)


def with_polars(path: Path, frame: pd.DataFrame) -> None:
    table = pl.from_pandas(frame)
    match path.suffix:
        case ".csv":
            table.write_csv(path)
        case ".tsv":
            table.write_csv(path, separator="\t")
        case ".parquet":
            table.write_parquet(path)
        case _:
            table.write_ndjson(path)


def with_duckdb(path: Path, frame: pd.DataFrame) -> None:
    how = {".csv": "", ".tsv": "(FORMAT csv, DELIMITER '\t')"}.get(path.suffix, "(FORMAT json)")
    duckdb.sql(f"COPY frame TO '{path}' {'' if path.suffix == '.parquet' else how}")


def with_the_standard_library(path: Path, frame: pd.DataFrame) -> None:
    if path.suffix in (".csv", ".tsv"):
        with open(path, "w", encoding="utf-8-sig", newline="") as stream:
            writer = csv.writer(stream, dialect="excel" if path.suffix == ".csv" else "excel-tab")
            writer.writerows([frame.columns, *frame.values.tolist()])
    elif path.suffix == ".parquet":
        pq.write_table(pa.table(dict(frame)), path, row_group_size=3)
    else:
        path.write_text("".join(json.dumps(row) + "\r\n" for row in frame.to_dict("records")), encoding="utf-8")


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet", ".jsonl", ".ndjson"])
@pytest.mark.parametrize("write", [with_pandas, with_polars, with_duckdb, with_the_standard_library])
def test_a_column_is_what_others_wrote(
    write: Callable[[Path, pd.DataFrame], None], ending: str, tmp_path: Path
) -> None:
    path = tmp_path / f"corpus{ending}"
    write(path, pd.DataFrame({"id": IDS, "text": TEXTS, "text two": TEXTS[::-1]}))
    found = read(path, keep="id,text two")
    assert [(one.number, one.text) for one in found] == EXPECTED
    has_types = ending not in (".csv", ".tsv")
    others = [number if has_types else str(number) for number, _ in EXPECTED]
    assert [one.kept for one in found] == [
        {"id": other, "text two": TEXTS[-number]} for other, (number, _) in zip(others, EXPECTED, strict=True)
    ]


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("ending", [".txt", "", ".md", ".jsonl", ".csv", ".tsv"])
def test_a_packed_file_is_read_as_it_was(ending: str, packing: str, tmp_path: Path) -> None:
    separator = "\t" if ending == ".tsv" else ","
    lines = ["time flies", "", "fruit flies"]
    if ending == ".jsonl":
        lines = [json.dumps({"text": line}) for line in lines]
    elif ending in (".csv", ".tsv"):
        lines = [f"id{separator}text", *(f"1{separator}{line}" for line in lines)]
    path = tmp_path / f"corpus{ending}{packing}"
    path.write_bytes(PACK[packing]("\n".join(lines).encode()))
    assert texts(path) == [(1, "time flies"), (3, "fruit flies")]


odd = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1) | st.sampled_from(
    ['"', '""', "a,b", "\r", "\n", "\r\n", "a\tb", "\ufeff", "\x1a", "\x85", '",\n"', "\\n", "null", "NaN"]
)


@given(rows=st.lists(st.tuples(odd, odd), min_size=1, max_size=8))
def test_any_text_comes_out_as_it_went_in(
    rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("odd")
    columns = {"text": [text for text, _ in rows], "label": [label for _, label in rows]}
    for ending, separator in ((".csv", ","), (".tsv", "\t")):
        with open(folder / f"a{ending}", "w", encoding="utf-8", newline="") as stream:
            csv.writer(stream, delimiter=separator, quoting=csv.QUOTE_ALL).writerows([columns, *rows])
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=3)
    objects = [dict(zip(columns, row, strict=True)) for row in rows]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, objects)), encoding="utf-8")
    for ending in (".csv", ".tsv", ".parquet", ".jsonl"):
        found = read(folder / f"a{ending}", keep="label")
        assert [(one.number, one.text, one.kept["label"]) for one in found] == [
            (number, *row) for number, row in enumerate(rows, start=1)
        ], ending


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"column": "txt"}, "has no column 'txt'; --column names one of id, text; did you mean 'text'?"),
        ({"keep": "id,lable"}, "has no column 'lable'; there are id, text"),
        ({"column": "\x1b[2J"}, r"has no column '\x1b[2J'; --column names one of id, text"),
    ],
)
@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet", ".jsonl"])
def test_a_column_that_is_not_there_is_said_with_those_that_are(
    how: dict[str, str], said: str, ending: str, tmp_path: Path
) -> None:
    path = tmp_path / f"corpus{ending}"
    with_pandas(path, pd.DataFrame({"id": IDS, "text": TEXTS}))
    if ending == ".jsonl":
        how = {name.replace("column", "field"): value for name, value in how.items()}
        said = said.replace("column", "field")
    with pytest.raises(InputError) as refused:
        read(path, **how)
    assert str(refused.value) == f"{path} {said}"


def test_a_file_that_cannot_be_read_does_not_keep_the_others_from_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("time\n", encoding="utf-8")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 nothing PAR1")
    (tmp_path / "c.csv").write_text("id,txt\n1,flies\n", encoding="utf-8")
    (tmp_path / "d.txt.gz").write_bytes(b"no gzip")
    (tmp_path / "e.txt").write_bytes(b"\xff\xfet\0i\0")
    (tmp_path / "f.txt").symlink_to("nothing")
    (tmp_path / "g.jsonl").write_text('{"text": "arrow"}\n', encoding="utf-8")
    (tmp_path / "h.txt").write_bytes(b"")
    os.mkfifo(tmp_path / "i.txt")
    found = read(tmp_path)
    assert [(one.number, one.text, one.kept["file"]) for one in found if isinstance(one.text, str)] == [
        (1, "time", str(tmp_path / "a.txt")),
        (1, "arrow", str(tmp_path / "g.jsonl")),
    ]
    failures = [one.text for one in found if isinstance(one.text, Failure)]
    names = [str(tmp_path / name) for name in ("b.parquet", "c.csv", "d.txt.gz", "e.txt", "f.txt")]
    assert [failure.kept["file"] for failure in failures] == names
    for failure, name in zip(failures, names, strict=True):
        assert failure.of(1).startswith(f"{name}, sentence 1: ")
        assert name in failure.reason


def test_a_single_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for name, content in {"a.parquet": b"no", "b.csv": b"", "c.jsonl": b"\n", "d.txt": b"", "e.csv": b"text\n"}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=name):
            read(tmp_path / name)
    (tmp_path / "f.txt.bz2").write_bytes(bz2.compress(b"time\n"))
    with pytest.raises(InputError, match="unpack it first: bunzip2"):
        read(tmp_path / "f.txt.bz2")
    (tmp_path / "g.csv").write_bytes(gzip.compress(b"text\ntime\n"))
    with pytest.raises(InputError, match="is packed and no text"):
        read(tmp_path / "g.csv")


@pytest.mark.parametrize(
    ("name", "how", "said"),
    [
        ("a.txt", {"field": "x"}, "--field does not apply to a.txt, which is text; it names a field of .jsonl or"),
        ("a.csv", {"field": "x"}, "--field does not apply to a.csv, which is CSV; it names a field"),
        ("a.jsonl", {"column": "x"}, "--column does not apply to a.jsonl, which is JSON Lines; it names a column"),
        ("a.txt.gz", {"column": "x"}, "--column does not apply to a.txt.gz, which is text; it names a column"),
        ("a.txt", {"keep": "id"}, "--keep does not apply to a.txt, which is text; what it keeps are fields"),
        ("a.parquet", {"whole": True}, "--whole does not apply to a.parquet, which is Parquet; drop it"),
        ("a.csv", {"keep": "id,"}, "--keep 'id,': expected names with commas, such as id,label"),
        ("a.csv", {"keep": "\udcff"}, r"--keep '\udcff': expected names with commas, such as id,label"),
        (".", {"keep": "file"}, "--keep file: where several files are read, file says which one it is; drop it"),
        ("\x1b]0;.txt", {"keep": "id"}, r"--keep does not apply to \x1b]0;.txt, which is text; what it keeps"),
    ],
)
def test_an_option_that_does_not_apply_is_refused(
    name: str, how: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for one in ("a.csv", "b.csv"):
        (tmp_path / one).write_text("text\n", encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        Corpus.of(name, **how)
    assert str(refused.value).startswith(said)


def test_where_some_files_have_fields_and_some_columns_both_options_apply(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,body\n1,time\n", encoding="utf-8")
    (tmp_path / "b.jsonl").write_text('{"id": 2, "said": "flies"}\n', encoding="utf-8")
    found = read(tmp_path, column="body", field="said", keep="id")
    assert [(one.text, list(one.kept.values())[1]) for one in found] == [("time", "1"), ("flies", 2)]


def test_whole_files_are_a_text_each(tmp_path: Path) -> None:
    for name, text in {"a.txt": "time\n\nflies\n", "b.txt": "fruit", "c.txt": " \n"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    corpus = Corpus.of(str(tmp_path), whole=True)
    assert not corpus.is_one
    assert [one.text for one in corpus.sentences()] == ["time\n\nflies\n", "fruit"]
    assert Corpus.of(str(tmp_path / "a.txt"), whole=True).is_one


def test_lists_of_messages_are_read_from_a_field_too(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "time flies"}]
    (tmp_path / "a.jsonl").write_text(json.dumps(messages) + "\n", encoding="utf-8")
    (tmp_path / "b.jsonl").write_text(json.dumps({"id": 1, "talk": messages}) + '\n{"talk": [1]}\n', encoding="utf-8")
    (line,) = read(tmp_path / "a.jsonl", chat=True)
    field, broken = read(tmp_path / "b.jsonl", chat=True, field="talk", keep="id")
    assert type(line.text) is type(field.text)
    assert line.text == field.text == json.dumps(messages)
    assert field.kept == {"id": 1}
    assert isinstance(broken.text, Failure)
    pq.write_table(pa.table({"talk": [messages, None, []]}), tmp_path / "c.parquet")
    assert texts(tmp_path / "c.parquet", chat=True, column="talk") == [(1, line.text)]
    assert list(bad(tmp_path / "c.parquet", chat=True, column="talk")) == [2, 3]
    with pytest.raises(InputError, match=r"expected text$"):
        read(tmp_path / "c.parquet", column="talk")


def test_the_last_number_is_known_where_that_is_quick(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n\nb", encoding="utf-8")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"a\nb\n"))
    pq.write_table(pa.table({"text": ["time"] * 5000}), tmp_path / "a.parquet")
    for name, number in {"a.txt": 3, "a.parquet": 5000, "a.txt.gz": None, "": None, "b.txt": None}.items():
        assert Corpus.of(str(tmp_path / name)).last_number() == number
