"""Sentences out of every kind of file, beside what DuckDB and the standard library write of it."""

import csv
import gzip
import json
import os
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import EXPECTED, IDS, PACK, TEXTS, bad, read, texts
from hypothesis import given
from hypothesis import strategies as st

from attncli.corpus.read import SentenceReader
from attncli.errors import Failure, InputError, UsageError
from attncli.text import visible


def with_duckdb(path: Path, frame: pd.DataFrame) -> None:
    how = {".csv": "", ".tsv": "(FORMAT csv, DELIMITER '\t')"}.get(path.suffix, "(FORMAT json)")
    duckdb.sql(f"COPY frame TO '{path}' {'' if path.suffix == '.parquet' else how}")


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet", ".jsonl"])
def test_a_column_is_what_duckdb_wrote(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"corpus{ending}"
    with_duckdb(path, pd.DataFrame({"id": IDS, "text": TEXTS, "text two": TEXTS[::-1]}))
    assert texts(path) == EXPECTED
    assert [text for _, text in texts(path, column="text two")] == [text for text in TEXTS[::-1] if text]


@pytest.mark.parametrize(("ending", "packing"), [("", ""), (".md", ".gz"), (".jsonl", ".gz"), (".tsv", ".GZ")])
def test_a_packed_file_is_read_as_it_was(ending: str, packing: str, tmp_path: Path) -> None:
    content = {".jsonl": '{"text": "time flies"}\n{"text": ""}\n{"text": "fruit flies"}'}
    content[".tsv"] = "id\ttext\n1\ttime flies\n1\t\n1\tfruit flies"
    path = tmp_path / f"corpus{ending}{packing}"
    path.write_bytes(PACK[packing](content.get(ending, "time flies\n\nfruit flies").encode()))
    assert texts(path) == [(1, "time flies"), (3, "fruit flies")]


odd = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1) | st.sampled_from(
    ['"', '""', "a,b", "\r", "\n", "\r\n", "a\tb", "\ufeff", "\x1a", "\x85", '",\n"', "\\n", "null", "NaN"]
)


@given(rows=st.lists(st.tuples(odd, odd), min_size=1, max_size=8))
def test_any_text_comes_out_as_it_went_in(
    rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("odd")
    rows = [*rows, ("time", "flies")]
    columns = {"text": [text for text, _ in rows], "label": [label for _, label in rows]}
    for ending, separator in ((".csv", ","), (".tsv", "\t")):
        with open(folder / f"a{ending}", "w", encoding="utf-8", newline="") as stream:
            csv.writer(stream, delimiter=separator, quoting=csv.QUOTE_ALL).writerows([columns, *rows])
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=3)
    objects = [dict(zip(columns, row, strict=True)) for row in rows]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, objects)), encoding="utf-8")
    for ending in (".csv", ".tsv", ".parquet", ".jsonl"):
        for place, column in enumerate(columns):
            expected = [row[place] for row in rows if row[place].strip()]
            assert [text for _, text in texts(folder / f"a{ending}", column=column)] == expected


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".jsonl"])
def test_a_column_that_is_not_there_is_said_with_those_that_are(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"corpus{ending}"
    with_duckdb(path, pd.DataFrame({"id": IDS, "text": TEXTS}))
    for column, hint in {"txt": "; did you mean 'text'?", "\x1b[2J": ""}.items():
        with pytest.raises(InputError) as refused:
            read(path, column=column)
        assert str(refused.value) == f"{path} has no column '{visible(column)}'; --column names one of id, text{hint}"


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
    assert [(one.number, one.text, one.metadata["file"]) for one in found if isinstance(one.text, str)] == [
        (1, "time", str(tmp_path / "a.txt")),
        (1, "arrow", str(tmp_path / "g.jsonl")),
    ]
    failures = [one.text for one in found if isinstance(one.text, Failure)]
    names = [str(tmp_path / name) for name in ("b.parquet", "c.csv", "d.txt.gz", "e.txt", "f.txt")]
    assert [failure.metadata["file"] for failure in failures] == names
    for failure, name in zip(failures, names, strict=True):
        assert failure.of(1).startswith(f"{name}, sentence 1: ")
        assert name in failure.reason


def test_a_single_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for name, content in {"a.parquet": b"no", "b.csv": b"", "c.jsonl": b"\n", "d.txt": b"", "e.csv": b"text\n"}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=name):
            read(tmp_path / name)
    (tmp_path / "g.csv").write_bytes(gzip.compress(b"text\ntime\n"))
    with pytest.raises(InputError, match=r"g\.csv is compressed, binary or in another encoding; expected UTF-8"):
        read(tmp_path / "g.csv")


@pytest.mark.parametrize(("name", "how", "message"), [
    ("a.txt", {"column": "x"}, "--column does not apply to a.txt, which is text; it applies to .csv, .tsv"),
    ("a.parquet", {"whole": True}, "--whole does not apply to a.parquet, which is Parquet; drop it"),
    ("\x1b]0;.txt", {"column": "id"}, r"--column does not apply to \x1b]0;.txt, which is text; it applies"),
])  # fmt: skip
def test_an_option_that_does_not_apply_is_refused(
    name: str, how: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for one in ("a.csv", "b.csv"):
        (tmp_path / one).write_text("text\n", encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        SentenceReader.of(name, **how)
    assert str(refused.value).startswith(message)


def test_lists_of_messages_are_read_from_a_field_too(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "time flies"}]
    (tmp_path / "a.jsonl").write_text(json.dumps(messages) + "\n", encoding="utf-8")
    (tmp_path / "b.jsonl").write_text(json.dumps({"id": 1, "talk": messages}) + '\n{"talk": [1]}\n', encoding="utf-8")
    (line,) = read(tmp_path / "a.jsonl", chat=True)
    field, broken = read(tmp_path / "b.jsonl", chat=True, column="talk")
    assert type(line.text) is type(field.text)
    assert line.text == field.text == json.dumps(messages)
    assert isinstance(broken.text, Failure)
    pq.write_table(pa.table({"talk": [messages, None, []]}), tmp_path / "c.parquet")
    assert texts(tmp_path / "c.parquet", chat=True, column="talk") == [(1, line.text)]
    assert list(bad(tmp_path / "c.parquet", chat=True, column="talk")) == [2, 3]
    with pytest.raises(InputError, match=r"expected text$"):
        read(tmp_path / "c.parquet", column="talk")


def test_sentences_come_before_the_file_has_been_read(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "wb") as written:
        written.write(b"time\nflies\n")
        written.flush()
        found = SentenceReader.of(f"/dev/fd/{read_end}").sentences()
        assert next(found).text == "time"
    os.close(read_end)
    assert [one.text for one in found] == ["flies"]


# --- what is bad -------------------------------------------------------------------------------------------


def test_a_bad_line_of_json_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    lines = [
        b'{"text": "time", "id": 1}', b"time flies", b'["text"]', b'{"text": null, "id": "x"}', b'{"text": 3}',
        b'{"txt": "flies"}', b'{"text": "na\xefve"}', b'{"text": ""}', b"",
        b'{"text": "half", "id": 2', b'{"text": "\\ud800"}', b'{"text": "arrow"}', b"[" * 5000,
    ]  # fmt: skip
    path.write_bytes(b"\n".join(lines))
    message: list[str] = []
    found = list(SentenceReader.of(str(path)).sentences(message.append))
    assert [(one.number, one.text) for one in found if isinstance(one.text, str)] == [(1, "time"), (12, "arrow")]
    assert message == [f"{path}: 2 empty texts were skipped"]
    reasons = {one.number: one.text.reason for one in found if isinstance(one.text, Failure)}
    assert list(reasons) == [2, 3, 4, 5, 6, 7, 10, 11, 13]
    assert reasons[2].startswith("not JSON: ")
    assert reasons[3] == "not a JSON object"
    assert reasons[4] == reasons[5] == "its 'text' is not text"
    assert reasons[6] == "it has no column 'text'; --column names one of txt; did you mean 'txt'?"
    assert reasons[7] == f"it is not UTF-8 at byte 13; convert {path} to UTF-8 first"


def test_a_bad_row_of_csv_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    rows = [
        b"id,text,label", b"1,time,a", b"2,na\xefve,b", b"3,fruit,\xff", b"4,a,b,c", b"5", b'6,"he said "hi" to",x',
        b"", b"7,flies,b", b'8,"two', b'lines",c', b"9,,d", b'10,"never ends,c',
    ]  # fmt: skip
    path.write_bytes(b"\n".join(rows))
    assert texts(path) == [(1, "time"), (3, "fruit"), (7, "flies"), (8, "two\nlines")]
    reasons = bad(path)
    assert list(reasons) == [2, 4, 5, 6, 10]
    assert reasons[2] == f"it is not UTF-8 at byte 3; convert {path} to UTF-8 first"
    assert reasons[4] == "it has 4 columns, and the header 3"
    assert reasons[5] == "it has 1 column, and the header 3"
    assert reasons[6].startswith("not a row: ',' expected after '\"'")
    assert reasons[10].startswith("not a row: unexpected end of data")


def test_a_small_parquet_file_that_unpacks_to_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "packed.parquet"
    pq.write_table(pa.table({"text": ["a" * 2**20]}), path, use_dictionary=False, compression="zstd")
    assert texts(path) == [(1, "a" * 2**20)]
    monkeypatch.setattr("attncli.corpus.readers._MAX_UNPACKED", 2**19)
    with pytest.raises(InputError, match=r"packed.parquet has \d+ KiB of text that unpack to 1 MiB; split it"):
        texts(path)
