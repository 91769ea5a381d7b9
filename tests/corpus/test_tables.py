"""Rows of CSV and of Parquet: what is kept of them, and what of them is bad."""

import csv
import math
from datetime import UTC, date, datetime, time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import bad, read, texts

from attncli.corpus.reading import Corpus
from attncli.errors import Failure, InputError


def test_what_is_kept_has_the_type_that_it_had(tmp_path: Path) -> None:
    when = datetime(2020, 1, 2, 3, 4, 5, 678901)
    columns = {
        "text": pa.array(["time", None], pa.large_string()),
        "whole": pa.array([2**62, None], pa.int64()),
        "tiny": pa.array([1, 2], pa.uint8()),
        "real": pa.array([0.1, math.inf], pa.float64()),
        "half": pa.array([0.5, 2], pa.float16()),
        "sure": pa.array([True, False]),
        "none": pa.nulls(2),
        "kind": pa.array(["a", "b"]).dictionary_encode(),
        "day": pa.array([date(2020, 1, 2), None]),
        "hour": pa.array([time(3, 4, 5), None]),
        "when": pa.array([when, None], pa.timestamp("us")),
        "there": pa.array([when.replace(tzinfo=UTC), None], pa.timestamp("us", "UTC")),
        "old": pa.array([b"bytes", None]),
        "a.b": pa.array(["dotted", None]),
        "a": pa.array([{"b": "nested"}, None]),
    }
    path = tmp_path / "types.parquet"
    pq.write_table(pa.table(columns), path)
    simple = "whole,tiny,real,half,sure,none,kind,day,hour,when,there,a.b"
    one, other = read(path, keep=simple)
    assert one.kept == {
        "whole": 2**62, "tiny": 1, "real": 0.1, "half": 0.5, "sure": True, "none": None, "kind": "a",
        "day": "2020-01-02", "hour": "03:04:05.000000", "when": "2020-01-02T03:04:05.678901",
        "there": "2020-01-02T03:04:05.678901Z", "a.b": "dotted",
    }  # fmt: skip
    assert datetime.fromisoformat(str(one.kept["when"])) == when
    assert datetime.fromisoformat(str(one.kept["there"])) == when.replace(tzinfo=UTC)
    assert list(one.kept) == simple.split(",")
    assert other.text == Failure("its 'text' is null; expected text")
    assert (other.kept["kind"], other.kept["whole"]) == ("b", None)
    for name, kind in {"old": "binary", "a": "struct<b: string>"}.items():
        with pytest.raises(InputError, match=rf"^column '{name}' of .* is {kind}; what is kept are texts, "):
            read(path, keep=name)
    assert texts(path, column="old") == [(1, "bytes")]  # as some old writers put texts
    for name, kind in {"whole": "int64", "a": "struct<b: string>", "when": r"timestamp\[us\]"}.items():
        with pytest.raises(InputError, match=rf"^column '{name}' of .* is {kind}; expected text$"):
            read(path, column=name)


def test_a_bad_row_of_csv_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    rows = [
        b"id,text,label", b"1,time,a", b"2,na\xefve,b", b"3,fruit,\xff", b"4,a,b,c", b"5", b'6,"he said "hi" to",x',
        b"", b"7,flies,b", b'8,"two', b'lines",c', b"9,,d", b'10,"never ends,c',
    ]  # fmt: skip
    path.write_bytes(b"\n".join(rows))
    assert texts(path, keep="id") == [(1, "time"), (3, "fruit"), (7, "flies"), (8, "two\nlines")]
    reasons = bad(path, keep="label")
    assert list(reasons) == [2, 3, 4, 5, 6, 10]
    assert reasons[2] == f"it is not UTF-8 at byte 3; convert {path} to UTF-8 first"
    assert reasons[4] == "it has 4 columns, and the header 3"
    assert reasons[5] == "it has 1 column, and the header 3"
    assert reasons[6].startswith("it is no row: ',' expected after '\"'")
    assert reasons[10].startswith("it is no row: unexpected end of data")


@pytest.mark.parametrize("line", ["like an arrow\n", '\n","'], ids=["a field", "many fields"])
def test_a_row_that_never_ends_takes_no_more_than_so_much_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    from attncli.corpus import tables

    monkeypatch.setattr(tables, "MOST_BYTES", 2**20)
    path = tmp_path / "open.csv"
    path.write_text('text\ntime\n"flies' + line * (2**21 // len(line)) + '"\n', encoding="utf-8")
    try:
        said = "it is no row: it goes on for more than 1 MiB, as where a quote is not closed (from line 3 on)"
        assert bad(path)[2].startswith(said)
    finally:
        csv.field_size_limit(2**17)


def test_a_column_that_is_there_twice_is_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "twice.csv").write_text("text,text\na,b\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"has 2 columns 'text'; expected one$"):
        read(tmp_path / "twice.csv")


def test_bytes_that_are_no_utf_8_harm_their_row_alone(tmp_path: Path) -> None:
    path = tmp_path / "bad.parquet"
    broken = pa.Array.from_buffers(pa.string(), 3, pa.array([b"time", b"na\xefve", b"flies"]).buffers())
    pq.write_table(pa.table({"text": broken, "label": broken}), path)
    assert texts(path) == [(1, "time"), (3, "flies")]
    assert bad(path, keep="label") == {2: f"it is not UTF-8 at byte 3; convert {path} to UTF-8 first"}


def test_of_a_parquet_file_with_a_corrupt_row_group_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "corrupt.parquet"
    words = [f"word {number}" for number in range(3000)]
    pq.write_table(pa.table({"text": words}), path, row_group_size=1000, use_dictionary=False)
    data = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    data[start : start + 400] = bytes(400)
    path.write_bytes(data)
    found = read(path)
    good = [one for one in found if isinstance(one.text, str)]
    assert [(one.number, one.text) for one in good] == [
        (number, word) for number, word in enumerate(words, start=1) if not 1000 < number <= 2000
    ]
    ((number, reason),) = bad(path).items()
    assert number == 1001
    assert reason.startswith(f"it and those up to 2000, of row group 1: cannot read {path}: ")


def test_a_large_file_is_read_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.parquet"
    pq.write_table(pa.table({"text": ["time flies like an arrow " * 40] * 50_000}), path, use_dictionary=False)
    size = pq.ParquetFile(path).metadata.row_group(0).total_byte_size
    before = pa.total_allocated_bytes()
    most = 0
    for count, _ in enumerate(Corpus.of(str(path)).sentences()):
        if count % 1000 == 0:
            most = max(most, pa.total_allocated_bytes() - before)
    assert size > 2**25 > most
