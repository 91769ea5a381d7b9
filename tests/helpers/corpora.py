"""Sentences that are hard to write down, and how a corpus of them is read."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from attncli.corpus.read import SentenceReader
from attncli.engines.source import CorpusItem
from attncli.errors import Failure

TEXTS = ["time flies", 'he said "hi",\nthere', "naïve 漢字\t👍", "", "  blanks ", "\\t is no tab", "'", "a\u2028b"]
IDS = list(range(1, len(TEXTS) + 1))


def read(place: Path | str, **how: Any) -> list[CorpusItem]:
    return list(SentenceReader.of(str(place), **how).sentences())


def texts(place: Path | str, **how: Any) -> list[tuple[int, str]]:
    return [(one.number, one.text) for one in read(place, **how) if isinstance(one.text, str)]


def bad(place: Path | str, **how: Any) -> dict[int, str]:
    return {one.number: one.text.reason for one in read(place, **how) if isinstance(one.text, Failure)}


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


PACK: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zstd, ".GZ": gzip.compress}
EXPECTED = [(number, text) for number, text in zip(IDS, TEXTS, strict=True) if text]
