"""Commands of files, folders and globs: what is answered, what is said, and how the run ends."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

Run = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose second file ends too early, and whose last one has no such field."""
    monkeypatch.chdir(tmp_path)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.txt").write_text("time flies\n\nfruit flies\n", encoding="utf-8")
    packed = gzip.compress(b"like\n" + (bytes(range(97, 123)) + b"\n") * 40 + b"an arrow\n")
    (corpus / "b.txt.gz").write_bytes(packed[:-12])
    (corpus / "c.csv").write_text('id,text\n7,"a\nbanana"\n', encoding="utf-8")
    (corpus / "d.jsonl").write_text('{"txt": "time"}\n', encoding="utf-8")
    return corpus


SAID = """\
attn: corpus/b.txt.gz, sentence {}: cannot read corpus/b.txt.gz: it is cut short: its compressed data end too early
attn: corpus/d.jsonl, sentence 1: corpus/d.jsonl has no column 'text'; --column names one of txt; did you mean 'txt'?
attn: corpus: 1 empty text was skipped
"""


@pytest.mark.parametrize("command", ["inspect", "tokens", "heads"])
def test_what_can_be_read_of_a_folder_is_answered(attn: Run, folder: Path, command: str) -> None:
    ran = attn(command, "--file", "corpus", "-F", "tsv")
    assert ran.code == 5
    number = ran.err.partition("sentence ")[2].partition(":")[0]
    assert ran.err == SAID.format(number)
    if command != "heads":
        found = [line.split("\t")[0] for line in ran.out.splitlines()[1:]]
        assert list(dict.fromkeys(found))[:2] == ["1", "3"]
        assert found[-1] == "1"


def test_the_only_file_is_refused_before_anything_is_loaded(attn: Run, folder: Path) -> None:
    for name, message in {
        "corpus/d.jsonl": "corpus/d.jsonl has no column 'text'",
        "corpus/e.parquet": "cannot read corpus/e.parquet: No such file or directory",
        "corpus/*.tsv": "no file fits corpus/*.tsv",
        "x\x1b[2J.csv": "no file fits x\\x1b[2J.csv",
    }.items():
        refused(attn("inspect", "--file", name, "-m", "/no/such/model"), 5, f"attn: {message}")
