"""Lines of text, as they come."""

import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from refusals import INPUT

from attncli.corpus.read import SentenceReader
from attncli.corpus.readers.text import MAX_EMPTY
from attncli.engines.source import CorpusItem

Run = Callable[..., Any]


def test_sentences_come_before_the_file_has_been_read(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "wb") as written:
        written.write(b"time\nflies\n")
        written.flush()
        found: Iterator[CorpusItem] = SentenceReader.of(f"/dev/fd/{read_end}").sentences()
        assert next(found).text == "time"
    os.close(read_end)
    assert [one.text for one in found] == ["flies"]


@pytest.mark.parametrize(("ending", "line"), [("txt", b" \r\n"), ("jsonl", b"\n"), ("csv", b"\n")])
def test_a_small_file_that_unpacks_to_empty_lines_is_given_up_with_the_line(
    line: bytes, ending: str, attn: Run, tmp_path: Path
) -> None:
    first = {"txt": b"time", "jsonl": b'{"text": "time"}', "csv": b"text\ntime"}[ending]
    path = tmp_path / f"bomb.{ending}.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(first + b"\n")
        for _ in range(64):
            file.write(line * 2**20)
    ran = attn("tokens", "-f", path, "-F", "jsonl")
    lines = first.count(b"\n") + 1 + MAX_EMPTY + 1
    assert (ran.code, json.loads(ran.out)["text"]) == (INPUT, "time")
    assert f"has no text in the {MAX_EMPTY + 1:,} lines up to line {lines:,}; remove them" in ran.err


def test_many_empty_lines_between_sentences_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("time\n" + "\n" * MAX_EMPTY + "flies\n")
    assert [one.text for one in SentenceReader.of(str(path)).sentences()] == ["time", "flies"]
