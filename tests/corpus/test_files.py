"""The files of a corpus: found by folders and globs, packed, in memory, in a bucket, on the web."""

import gzip
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest
from corpora import EXPECTED, IDS, PACK, TEXTS, read, texts
from servers import serving

from attncli.corpus.files import SentenceFile, find_files
from attncli.corpus.read import SentenceReader
from attncli.errors import Failure, InputError

needs_zstd = pytest.mark.skipif(find_spec("zstandard") is None, reason="zstandard is not installed")
LINES = b"".join(b"line number %d\n" % number for number in range(1, 20_001))


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files and folders, some of them hidden, links that lead back, and a pipe."""
    for name in ("b.txt", "a.txt", "sub/c.txt", "sub/deep/d.txt", ".hidden", "_SUCCESS", "_temporary/x.txt", "f[1].md"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name, encoding="utf-8")
    (tmp_path / "sub" / "around").symlink_to(tmp_path)
    (tmp_path / "sub" / "deep" / "up").symlink_to("..")
    os.mkfifo(tmp_path / "sub" / "pipe.txt")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("place", "found"), [
    (".", ["./a.txt", "./b.txt", "./f[1].md", "./sub/c.txt", "./sub/deep/d.txt"]),
    ("sub/", ["sub/c.txt", "sub/deep/d.txt"]), ("?.txt", ["a.txt", "b.txt"]), ("[b-z].txt", ["b.txt"]),
    ("*", ["a.txt", "b.txt", "f[1].md"]), ("f[1].md", ["f[1].md"]),
    ("**/*.txt", ["a.txt", "b.txt", "sub/c.txt", "sub/deep/d.txt"]),
    ("sub/**", ["sub/c.txt", "sub/deep/d.txt"]), ("*/**/*.txt", ["sub/c.txt", "sub/deep/d.txt"]), ("_*", ["_SUCCESS"]),
    ("_temporary", ["_temporary/x.txt"]), ("missing.txt", ["missing.txt"]),
])  # fmt: skip
def test_files_are_sorted_hidden_ones_left_out_and_no_links_followed(tree: Path, place: str, found: list[str]) -> None:
    assert [file.path for file in find_files(place)] == found


@pytest.mark.parametrize("packing", [".gz"])
def test_of_a_file_that_is_cut_short_what_is_whole_is_read(packing: str, tmp_path: Path) -> None:
    path = tmp_path / f"cut.txt{packing}"
    packed = PACK[packing](LINES)
    path.write_bytes(packed[: len(packed) // 2])
    *found, last = read(path)
    assert len(found) > 1000
    assert [one.text for one in found] == LINES.decode().splitlines()[: len(found)]
    assert last.number == len(found) + 1
    assert last.text == Failure(f"cannot read {path}: it is cut short: its compressed data end too early")


@pytest.mark.parametrize("packing", [".gz", pytest.param(".zst", marks=needs_zstd)])
def test_what_is_named_as_packed_and_is_not_is_refused(packing: str, tmp_path: Path) -> None:
    path = tmp_path / f"plain.txt{packing}"
    path.write_bytes(LINES)
    with pytest.raises(InputError, match=f"^cannot read {path}: (Not a gzipped|.*zstd)"):
        read(path)


def test_any_file_system_of_fsspec_is_read() -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    frame = pd.DataFrame({"id": IDS, "text": TEXTS})
    memory.pipe("/corpus/a.csv", frame.to_csv(index=False).encode())
    memory.pipe("/corpus/b.jsonl.gz", gzip.compress(frame.to_json(orient="records", lines=True).encode()))
    memory.pipe("/corpus/c.parquet", frame.to_parquet())
    memory.pipe("/corpus/sub/_x", b"hidden")
    corpus = SentenceReader.of("memory://corpus")
    assert [Path(file.name).name for file in corpus.files] == ["a.csv", "b.jsonl.gz", "c.parquet"]
    assert [(one.number, one.text) for one in corpus.sentences()] == 3 * EXPECTED
    assert texts("memory://corpus/*.parquet") == EXPECTED


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    frame = pd.DataFrame({"id": IDS, "text": TEXTS})
    files = {
        "a.csv": frame.to_csv(index=False).encode(),
        "b.jsonl.gz": gzip.compress(frame.to_json(orient="records", lines=True).encode()),
        "sub/c c.parquet": frame.to_parquet(),
    }
    with serving({f"/bucket/corpus/{name}": content for name, content in files.items()}) as host:
        yield host


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


def test_names_are_shown_without_passwords_and_with_the_numbers_of_odd_bytes() -> None:
    assert SentenceFile("bucket/a.txt", "s3://key:secret@bucket?region=x").name == "s3://bucket/a.txt"
    assert (
        SentenceFile("https://me:secret@host/a.txt?token=1", "https://me:secret@host/a.txt?token=1").name
        == "https://host/a.txt"
    )
    assert SentenceFile(os.fsdecode(b"a\xff.txt")).name == "a\\xff.txt"
