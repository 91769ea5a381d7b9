"""Lines of text, as they come."""

import os
from collections.abc import Iterator
from pathlib import Path

from attncli.corpus.reading import Corpus
from attncli.sources.stream import Sentence


def test_sentences_come_before_the_file_has_been_read(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "wb") as written:
        written.write(b"time\nflies\n")
        written.flush()
        found: Iterator[Sentence] = Corpus.of(f"/dev/fd/{read_end}").sentences()
        assert next(found).text == "time"
    os.close(read_end)
    assert [one.text for one in found] == ["flies"]
