"""Sentences out of every kind of file, beside what pandas, polars, DuckDB and the standard library read of it."""

import bz2
import csv
import gzip
import json
import math
import os
import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from servers import serving

from attncli.corpus.listing import listed
from attncli.corpus.places import File
from attncli.corpus.reading import Corpus
from attncli.errors import Failure, InputError, UsageError
from attncli.sources.stream import Sentence

TEXTS = ["time flies", 'he said "hi",\nthere', "naïve 漢字\t👍", "", "  blanks ", "\\t is no tab", "'", "a\u2028b"]
IDS = list(range(1, len(TEXTS) + 1))


def read(place: Path | str, **how: Any) -> list[Sentence]:
    return list(Corpus.of(str(place), **how).sentences())


def texts(place: Path | str, **how: Any) -> list[tuple[int, str]]:
    """Return the good sentences with their numbers."""
    return [(one.number, one.text) for one in read(place, **how) if isinstance(one.text, str)]


def bad(place: Path | str, **how: Any) -> dict[int, str]:
    """Return why the others are none."""
    return {one.number: one.text.reason for one in read(place, **how) if isinstance(one.text, Failure)}


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


PACK: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zstd, ".GZ": gzip.compress}
EXPECTED = [(number, text) for number, text in zip(IDS, TEXTS, strict=True) if text]

# --- each kind, as other programs write it -----------------------------------------------------------------


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


# --- rows that are bad -------------------------------------------------------------------------------------


def test_a_bad_line_of_json_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    lines = [
        b'{"text": "time", "id": 1}', b"time flies", b'["text"]', b'{"text": null, "id": "x"}', b'{"text": 3}',
        b'{"txt": "flies"}', b'{"text": "na\xefve"}', b'{"text": "fruit", "id": [1]}', b'{"text": ""}', b"",
        b'{"text": "half", "id": 2', b'{"text": "\\ud800"}', b'{"text": "arrow"}', b"[" * 5000,
    ]  # fmt: skip
    path.write_bytes(b"\n".join(lines))
    said: list[str] = []
    found = list(Corpus.of(str(path), keep="id").sentences(said.append))
    good = [(one.number, one.text, one.kept) for one in found if isinstance(one.text, str)]
    assert good == [(1, "time", {"id": 1}), (13, "arrow", {"id": None})]
    assert said == [f"{path}: 2 empty texts were skipped"]
    reasons = {one.number: one.text.reason for one in found if isinstance(one.text, Failure)}
    assert list(reasons) == [2, 3, 4, 5, 6, 7, 8, 11, 12, 14]
    assert reasons[2].startswith("it is no JSON: ")
    assert reasons[3] == "it is a list; expected a JSON object"
    assert reasons[4] == "its 'text' is null; expected text"
    assert reasons[5] == "its 'text' is a number; expected text"
    assert reasons[6] == "it has no field 'text'; --field names one of txt; did you mean 'txt'?"
    assert reasons[7] == f"it is not UTF-8 at byte 13; convert {path} to UTF-8 first"
    assert reasons[8] == "its 'id' is a list; what is kept are texts, numbers, true, false and null"
    assert {one.number: one.kept for one in found}[4] == {"id": "x"}


def test_a_number_is_kept_to_its_last_digit_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "ids.jsonl"
    numbers = [2**63, -(2**63), 2**64 - 1, 1e300, 0.1]
    rows = [{"text": "time", "id": number} for number in (*numbers, 2**64, -(2**63) - 1, 10**30)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert [one.kept["id"] for one in read(path, keep="id") if isinstance(one.text, str)] == numbers
    said = "its 'id' is a whole number of more than 64 bits; in quotes it would be kept as it is"
    assert bad(path, keep="id") == dict.fromkeys((6, 7, 8), said)


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
        assert bad(path)[2].startswith("it is no row: it goes on for more than 1 MiB, as where a quote is not closed")
    finally:
        csv.field_size_limit(2**17)


def test_bytes_that_are_no_utf_8_harm_their_row_alone(tmp_path: Path) -> None:
    path = tmp_path / "bad.parquet"
    broken = pa.Array.from_buffers(pa.string(), 3, pa.array([b"time", b"na\xefve", b"flies"]).buffers())
    pq.write_table(pa.table({"text": broken, "label": broken}), path)
    assert texts(path) == [(1, "time"), (3, "flies")]
    assert bad(path, keep="label") == {2: f"it is not UTF-8 at byte 3; convert {path} to UTF-8 first"}


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


def test_a_column_that_is_there_twice_is_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "twice.csv").write_text("text,text\na,b\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"has 2 columns 'text'; expected one$"):
        read(tmp_path / "twice.csv")


def test_a_field_may_be_missing_in_some_objects_but_not_in_the_first_hundred(tmp_path: Path) -> None:
    path = tmp_path / "late.jsonl"
    path.write_text('{"version": 1}\n{"text": "time", "id": 7}\n', encoding="utf-8")
    assert texts(path, keep="id") == [(2, "time")]
    path.write_text('{"version": 1}\n' * 100 + '{"text": "time", "id": 7}\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"has no field 'text'; --field names one of version$"):
        read(path)


# --- files that are bad ------------------------------------------------------------------------------------

LINES = b"".join(b"line number %d\n" % number for number in range(1, 20_001))


@pytest.mark.parametrize("packing", [".gz", ".zst"])
def test_of_a_file_that_is_cut_short_what_is_whole_is_read(packing: str, tmp_path: Path) -> None:
    path = tmp_path / f"cut.txt{packing}"
    packed = PACK[packing](LINES)
    path.write_bytes(packed[: len(packed) // 2])
    *found, last = read(path)
    assert len(found) > 1000
    assert [one.text for one in found] == LINES.decode().splitlines()[: len(found)]
    assert last.number == len(found) + 1
    assert last.text == Failure(f"cannot read {path}: it is cut short: its compressed data end too early")


@pytest.mark.parametrize("packing", [".gz", ".zst"])
def test_what_is_named_as_packed_and_is_not_is_refused(packing: str, tmp_path: Path) -> None:
    path = tmp_path / f"plain.txt{packing}"
    path.write_bytes(LINES)
    with pytest.raises(InputError, match=f"^cannot read {path}: (Not a gzipped|ZSTD decompress failed)"):
        read(path)


def test_a_checksum_that_is_wrong_is_said(tmp_path: Path) -> None:
    path = tmp_path / "wrong.txt.gz"
    packed = bytearray(gzip.compress(LINES))
    packed[-6] ^= 1
    path.write_bytes(packed)
    assert texts(path)[-1] == (20_000, "line number 20000")
    assert bad(path)[20_001].startswith(f"cannot read {path}: CRC check failed")


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
    (tmp_path / "f.txt.bz2").write_bytes(bz2.compress(LINES))
    with pytest.raises(InputError, match="unpack it first: bunzip2"):
        read(tmp_path / "f.txt.bz2")
    (tmp_path / "g.csv").write_bytes(gzip.compress(b"text\ntime\n"))
    with pytest.raises(InputError, match="is packed and no text"):
        read(tmp_path / "g.csv")


# --- places ------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("b.txt", "a.txt", "sub/c.txt", "sub/deep/d.txt", ".hidden", "_SUCCESS", "_temporary/x.txt", ".git/y"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("place", "found"),
    [
        (".", ["./a.txt", "./b.txt", "./sub/c.txt", "./sub/deep/d.txt"]),
        ("sub", ["sub/c.txt", "sub/deep/d.txt"]),
        ("sub/", ["sub/c.txt", "sub/deep/d.txt"]),
        ("*.txt", ["a.txt", "b.txt"]),
        ("?.txt", ["a.txt", "b.txt"]),
        ("[b-z].txt", ["b.txt"]),
        ("*", ["a.txt", "b.txt", "sub/c.txt", "sub/deep/d.txt"]),
        ("**/*.txt", ["a.txt", "b.txt", "sub/c.txt", "sub/deep/d.txt"]),
        ("s*", ["sub/c.txt", "sub/deep/d.txt"]),
        ("_*", ["_SUCCESS", "_temporary/x.txt"]),
        ("_SUCCESS", ["_SUCCESS"]),
        ("_temporary", ["_temporary/x.txt"]),
        ("missing.txt", ["missing.txt"]),
    ],
)
def test_files_are_sorted_and_hidden_ones_left_out(tree: Path, place: str, found: list[str]) -> None:
    assert [file.path for file in listed(place)] == found


def test_elsewhere_they_are_found_as_here(tree: Path) -> None:
    url = tree.as_uri()
    for place in ("", "/sub", "/*.txt", "/**/*.txt", "/sub/*/*.txt", "/[b-z].txt", "/*", "/s*", "/_*", "/_temporary"):
        here = [str(file.path) for file in listed(str(tree) + place)]
        there = listed(url + place)
        assert [file.path for file in there] == here
        assert [file.name for file in there] == [f"file://{path}" for path in here]
        assert texts(url + place) == texts(str(tree) + place)


def test_a_file_whose_name_has_wildcards_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("time", encoding="utf-8")
    (tmp_path / "a1.txt").write_text("flies", encoding="utf-8")
    assert texts(tmp_path / "a[1].txt") == [(1, "time")]


def test_nothing_found_is_said(tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").touch()
    for place in (str(tmp_path), tmp_path.as_uri()):
        with pytest.raises(InputError, match=r"^the folder .* holds no file; "):
            listed(place)
        with pytest.raises(InputError, match=r"^no file fits .*/\*\.txt; "):
            listed(place + "/*.txt")


def test_any_file_system_of_fsspec_is_read() -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    frame = pd.DataFrame({"id": IDS, "text": TEXTS})
    memory.pipe("/corpus/a.csv", frame.to_csv(index=False).encode())
    memory.pipe("/corpus/b.jsonl.gz", gzip.compress(frame.to_json(orient="records", lines=True).encode()))
    memory.pipe("/corpus/c.parquet", frame.to_parquet())
    memory.pipe("/corpus/sub/_x", b"hidden")
    memory.pipe("/corpus/d.txt.zst", zstd(b"time\n\nflies"))
    corpus = Corpus.of("memory://corpus", keep=None)
    corpus = pickle.loads(pickle.dumps(corpus))  # as it is sent to other machines
    assert [Path(file.name).name for file in corpus.files] == ["a.csv", "b.jsonl.gz", "c.parquet", "d.txt.zst"]
    for index in range(3):
        assert [(one.number, one.text) for one in corpus.sentences_of(index)] == EXPECTED
    assert [(one.number, one.text) for one in corpus.sentences_of(3)] == [(1, "time"), (3, "flies")]
    assert list(corpus.sentences()) == [one for index in range(4) for one in corpus.sentences_of(index)]
    assert texts("memory://corpus/*.parquet") == EXPECTED


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    frame = pd.DataFrame({"id": IDS, "text": TEXTS})
    files = {
        "a.csv": frame.to_csv(index=False).encode(),
        "b.jsonl.gz": gzip.compress(frame.to_json(orient="records", lines=True).encode()),
        "sub/c c.parquet": frame.to_parquet(),
        "sub/d.txt.zst": zstd(b"time\n\nflies"),
        "_SUCCESS": b"",
    }
    with serving({f"/bucket/corpus/{name}": content for name, content in files.items()}) as host:
        yield host


def test_a_bucket_is_read_as_a_folder_is(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    where = f"?endpoint_override={server}&scheme=http&region=x"
    found = read(f"s3://bucket/corpus{where}", keep=None)
    names = [f"s3://bucket/corpus/{name}" for name in ("a.csv", "b.jsonl.gz", "sub/c c.parquet", "sub/d.txt.zst")]
    assert list(dict.fromkeys(one.kept["file"] for one in found)) == names
    assert [(one.number, one.text) for one in found] == EXPECTED * 3 + [(1, "time"), (3, "flies")]
    assert texts(f"s3://bucket/corpus/*/*.parquet{where}") == EXPECTED
    assert texts(f"s3://bucket/corpus/a.csv{where}") == EXPECTED
    with pytest.raises(InputError, match=r"^no file fits s3://bucket/corpus/\*\.txt; "):
        read(f"s3://bucket/corpus/*.txt{where}")
    with pytest.raises(InputError, match=r"^cannot read s3://bucket/corpus/no.txt: there is no such file or folder$"):
        read(f"s3://bucket/corpus/no.txt{where}")
    with pytest.raises(InputError, match=r"^cannot read s3://denied/a.csv: .*; are the credentials set that may read"):
        read(f"s3://denied/a.csv{where}")


def test_a_page_of_the_web_is_read_as_a_file_is(server: str) -> None:
    assert texts(f"http://{server}/bucket/corpus/a.csv?download=1") == EXPECTED
    assert texts(f"http://{server}/bucket/corpus/b.jsonl.gz") == EXPECTED
    assert texts(f"http://{server}/bucket/corpus/sub/c%20c.parquet") == EXPECTED
    with pytest.raises(InputError, match=rf"^cannot read http://{server}/no.txt: 404, message='Not Found'$"):
        read(f"http://{server}/no.txt?token=secret")
    with pytest.raises(InputError, match=r"403, message='Forbidden'; are the credentials set that may read it\?$"):
        read(f"http://{server}/denied.txt")
    with pytest.raises(InputError, match=r"^cannot read http://127.0.0.1:1/x.txt: Connect call failed"):
        read("http://127.0.0.1:1/x.txt")


def test_a_host_that_does_not_answer_is_one_sentence() -> None:
    url = "gs://anonymous@bucket/x.txt?endpoint_override=127.0.0.1:1&scheme=http&retry_limit_seconds=0.1"
    with pytest.raises(InputError, match=r"^cannot read gs://bucket/x\.txt: .*Could not connect to server.*$"):
        read(url)


def test_a_scheme_that_nobody_knows_is_said() -> None:
    with pytest.raises(InputError, match=r"^xy://z: nothing here reads xy://; expected s3, gs, hf, http or https$"):
        read("xy://z")


def test_names_are_shown_without_passwords_and_with_the_numbers_of_odd_bytes() -> None:
    assert File("bucket/a.txt", "s3://key:secret@bucket?region=x").name == "s3://bucket/a.txt"
    assert (
        File("https://me:secret@host/a.txt?token=1", "https://me:secret@host/a.txt?token=1").name
        == "https://host/a.txt"
    )
    assert File(os.fsdecode(b"a\xff.txt")).name == "a\\xff.txt"


# --- options -----------------------------------------------------------------------------------------------


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


def test_sentences_come_before_the_file_has_been_read(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "wb") as written:
        written.write(b"time\nflies\n")
        written.flush()
        found: Iterator[Sentence] = Corpus.of(f"/dev/fd/{read_end}").sentences()
        assert next(found).text == "time"
    os.close(read_end)
    assert [one.text for one in found] == ["flies"]


def test_a_glob_follows_no_links_around_and_opens_no_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("a/one.txt", "a/b/two.txt"):
        (tmp_path / name).write_text("time\n", encoding="utf-8")
    (tmp_path / "a" / "around").symlink_to(tmp_path)
    (tmp_path / "a" / "b" / "up").symlink_to("..")
    os.mkfifo(tmp_path / "a" / "pipe.txt")
    for place in ("**/*.txt", "a/**", "a/**/*", "**/**/*.txt", "./**/*.txt", f"{tmp_path}/*/**/*.txt"):
        found = [os.path.relpath(file.path) for file in Corpus.of(place).files]
        assert found == ["a/b/two.txt", "a/one.txt"], place
    assert [file.path for file in Corpus.of("a/*.txt").files] == ["a/one.txt"]
