"""Parts of a dataset for tests, small ones; run as a program, it writes some until it is killed."""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attncli.corpus.dataset
from attncli.corpus.dataset import DatasetSummary, ShardInfo, ShardWriterJob, in_shards, write_dataset
from attncli.corpus.jobs import TraceJob, render
from attncli.corpus.protocol import Result
from attncli.corpus.run import run
from attncli.engines.source import CorpusItem
from attncli.errors import Failure
from attncli.formats.columns import types_of
from attncli.trace.trace import Derivation
from attncli.trace.view import View

SMALL = 64  # sentences of a part
PARTS = [f"part-{file:05}-{part:05}.parquet" for file in range(2) for part in range(3)]  # of 150 sentences a file
METRICS = View(show=frozenset({"metrics"}))
MADE = {"command": "inspect"}


def sentences_of(count: int) -> Iterator[CorpusItem]:
    """Yield sentences of two files, of which some are bad."""
    for file in ("a.txt", "b.txt"):
        for number in range(1, count + 1):
            words = " ".join(f"w{number * k % 11}" for k in range(1, 2 + number % 7))
            text = Failure(f"no text in {file}") if number % 50 == 20 else words
            yield CorpusItem(number, text, {"file": file})


def toy_writer(folder: Path | str, view: View = METRICS, form: str = "parquet", **options: Any) -> ShardWriterJob:
    """Return the job that writes the toy layer's heads into a folder."""
    job = TraceJob(partial(render, derivation=Derivation(), view=view, form=form), {"layer": "0", **options})
    return ShardWriterJob(job, str(folder), form, types_of(view))


def write(
    folder: Path | str,
    count: int = 150,
    jobs: int = 1,
    job: ShardWriterJob | None = None,
    made: Any = MADE,
    **options: Any,
) -> tuple[DatasetSummary, list[Result[ShardInfo | None]]]:
    """Write a dataset, and return what was counted and what came of it."""
    results = []
    shards = in_shards(sentences_of(count), ["a.txt", "b.txt"])
    with write_dataset(str(folder), made) as summary:
        for result in run(job or toy_writer(folder, **options), shards, jobs):
            results.append(result)
            if isinstance(result.value, ShardInfo):
                summary.add(result.value)
    return summary, results


def files_of(folder: Path) -> dict[str, bytes]:
    """Return what the files of a folder hold, by their names."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def main() -> None:
    """Write a dataset into the folder of the first argument, with as many jobs as the second one says."""
    attncli.corpus.dataset.SHARD_SIZE = SMALL
    write(sys.argv[1], jobs=int(sys.argv[2]))


if __name__ == "__main__":
    main()
