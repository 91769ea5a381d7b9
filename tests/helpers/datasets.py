"""Parts of a dataset for tests, small ones; run as a program, it writes some until it is killed."""

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.dataset

import attncli.corpus.dataset
from attncli.corpus.dataset import DatasetSummary, PartInfo, PartWriterJob, in_shards, write_dataset
from attncli.corpus.jobs import ModelJob, Result, open_traces, render
from attncli.corpus.run import run
from attncli.engines.source import CorpusItem
from attncli.errors import Failure
from attncli.formats.columns import types_of
from attncli.trace.trace import Derivation
from attncli.trace.view import View

SMALL = 64  # sentences of a part
PARTS = [  # of 150 sentences of each of two files
    f"part-{file:05}-{first:010}-{last:010}.parquet"
    for file in (0, 1)
    for first, last in ((1, 63), (64, 127), (128, 150))
]
METRICS = View(show=frozenset({"metrics"}))
MADE = {"command": "inspect"}


def sentences_of(count: int) -> Iterator[CorpusItem]:
    for file in ("a.txt", "b.txt"):
        for number in range(1, count + 1):
            words = " ".join(f"w{number * k % 11}" for k in range(1, 2 + number % 7))
            text = Failure(f"no text in {file}") if number % 50 == 20 else words
            yield CorpusItem(number, text, {"file": file})


def toy_writer(folder: Path | str, **options: Any) -> PartWriterJob:
    task = partial(render, derivation=Derivation(), view=METRICS, form="parquet")
    job = ModelJob(open_traces, task, {"layer": "0", "model": None, **options})
    return PartWriterJob(job, str(folder), types=types_of(METRICS))


def write(
    folder: Path | str,
    count: int = 150,
    jobs: int = 1,
    job: PartWriterJob | None = None,
    made: Any = MADE,
    sentences: Iterable[CorpusItem] | None = None,
    **options: Any,
) -> tuple[DatasetSummary, list[Result[PartInfo | None]]]:
    results = []
    shards = in_shards(sentences or sentences_of(count), ["a.txt", "b.txt"])
    with write_dataset(str(folder), made) as summary:
        for result in run(job or toy_writer(folder, **options), shards, jobs):
            results.append(result)
            if isinstance(result.value, PartInfo):
                summary.parts.append(result.value)
    return summary, results


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def contents(folder: Path) -> tuple[Any, list[str]]:
    errors = [line for path in sorted(folder.glob("_part-*")) for line in path.read_text().splitlines()]
    return pyarrow.dataset.dataset(folder, format="parquet").to_table(), errors


if __name__ == "__main__":
    attncli.corpus.dataset.SHARD_SIZE = SMALL
    write(sys.argv[1], jobs=int(sys.argv[2]))
