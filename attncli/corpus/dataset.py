"""Writes a corpus as a folder of parts, each whole or absent, so that the same command resumes a run that was stopped.

The name of a part has the number of its file, and its first and last sentence. `_attncli.json` records the options, and
`_part-….errors.jsonl` the bad sentences of a part: the underscore hides both from readers of the folder as one table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from attncli._version import __version__
from attncli.corpus.jobs import Batch, BatchFn, Job, Result
from attncli.corpus.run import batched
from attncli.engines.source import CorpusItem
from attncli.errors import Failure, InputError, UsageError
from attncli.files import atomic_write, atomic_write_text, file_lock
from attncli.signals import OnInterrupt
from attncli.text import plural, visible

SHARD_SIZE = 256
"""Sentences of a file that a part has at most."""
SCHEMA = "attncli.dataset/5"
MANIFEST = "_attncli.json"
_LOCK = "_attncli.lock"


def in_shards(sentences: Iterable[CorpusItem], files: Sequence[str] = ()) -> Iterator[Batch]:
    """Yield the sentences of each part, with its name.

    They come file by file; `files` are the names of all, as the metadata of sentences have them, if there are several.
    """
    indices = {name: index for index, name in enumerate(files)}

    def place(sentence: CorpusItem) -> tuple[int, int]:
        return indices.get(str(sentence.metadata.get("file")), 0), sentence.number // SHARD_SIZE

    for (file, _), group in groupby(sentences, place):
        items = list(group)
        yield Batch(items, f"part-{file:05}-{items[0].number:010}-{items[-1].number:010}")


class PartInfo(NamedTuple):
    """A part that is written."""

    name: str  # of its file
    sentences: int  # how many it is of
    was_there: bool  # whether an earlier run wrote it


@dataclass(frozen=True)
class PartWriterJob:
    """Writes the results of another job into parts; see `Job`.

    The results are the bad sentences, with the warnings of computed ones, and after those of a part its `PartInfo`.
    """

    job: Job[Any]  # its results are pieces of `form`
    folder: str  # where parts are written, an absolute path
    form: str = "parquet"  # of their files: parquet, jsonl, tsv or csv
    types: Mapping[str, str] = field(default_factory=dict)  # of the columns of a part without rows

    def open(self, open_job: Callable[[], BatchFn[Any]] | None = None) -> BatchFn[PartInfo | None]:
        """Return the function from a shard to its results.

        The job is opened for the first part that is not there, by `open_job` if there is one.
        """
        opened = cache(open_job or self.job.open)

        def results(shard: Batch) -> Iterator[Result[PartInfo | None]]:
            part = Path(self.folder, f"{shard.name}.{self.form}")
            if was_there := part.exists():
                metadata = {sentence.number: sentence.metadata for sentence in shard.sentences}
                for number, reason in _errors_in(part):
                    yield Result(number, Failure(reason, metadata=metadata[number]))
            else:
                computed = (result for batch in batched(shard.sentences) for result in opened()(batch))
                yield from self._write(part, computed)
            yield Result(shard.sentences[-1].number, PartInfo(part.name, len(shard.sentences), was_there))

        return results

    def _write(self, part: Path, computed: Iterable[Result[Any]]) -> list[Result[None]]:
        """Write a part and its errors; return the results that are to be printed."""
        results: list[Result[None]] = []

        def values() -> Iterator[tuple[int, Any]]:
            latest: tuple[str, ...] = ()
            for number, value, warnings, notes in computed:
                news, latest = () if notes == latest else notes, notes
                if isinstance(value, Failure) or warnings or news:
                    results.append(Result(number, value if isinstance(value, Failure) else None, warnings, news))
                yield number, value

        with atomic_write(part) as aside:
            with aside.open("wb") as sink:
                if self.form == "parquet":
                    from attncli.formats.parquet import write_parquet

                    write_parquet(values(), self.types, sink)
                else:
                    from attncli.formats import joined

                    sink.writelines(piece.encode() for piece in joined(self.form, values(), self.types))
                sink.flush()
                os.fsync(sink.fileno())  # it is on the disk before it has its name
            if failures := [(row.number, row.value.reason) for row in results if isinstance(row.value, Failure)]:
                with atomic_write_text(_errors_of(part)) as stream:
                    stream.writelines(json.dumps({"sentence": number, "error": why}) + "\n" for number, why in failures)
        return results


def _errors_of(part: Path) -> Path:
    return part.with_name(f"_{part.stem}.errors.jsonl")


def _errors_in(part: Path) -> list[tuple[int, str]]:
    with suppress(FileNotFoundError):
        lines = _errors_of(part).read_text(encoding="utf-8").splitlines()
        return [(error["sentence"], error["error"]) for error in map(json.loads, lines)]
    return []


def _shown(folder: str) -> str:
    """Return a folder as it may be printed, short where it is in the working directory."""
    return visible(folder.removeprefix(f"{os.getcwd()}/"))


@dataclass
class DatasetSummary:
    """Counts of a run's output."""

    folder: Path
    parts: list[PartInfo] = field(default_factory=list)

    def kept(self) -> str:
        """Return a note on the output of a stopped run, and on how to resume it."""
        count = len([*self.folder.glob("part-*")])
        what = f"{_shown(str(self.folder))} has {plural(count, 'part')}; run the same command again to resume"
        return what if count else "no part was written yet"

    def __str__(self) -> str:
        before = sum(part.was_there for part in self.parts)
        there = f", {before} of them there before" if before else ""
        sentences = sum(part.sentences for part in self.parts)
        parts = f"{plural(sentences, 'sentence')} in {plural(len(self.parts), 'part')}"
        return f"{_shown(str(self.folder))}: {parts}{there}"


@contextmanager
def write_dataset(folder: str, made: Mapping[str, str]) -> Iterator[DatasetSummary]:
    """Lock a folder, an absolute path, for the parts of a run, and record its options there: `made`, by names.

    Raises:
        InputError: the folder holds other files, or cannot be written.
        UsageError: it holds parts of another run.
    """
    path, name = Path(folder), _shown(folder)
    is_new, made = not path.is_dir(), {"attn": __version__, **made}

    def clean() -> None:
        for lost in path.glob(".attn-*"):  # of a process that was killed
            lost.unlink()

    def leave() -> None:
        with suppress(OSError):
            clean()
            (path / _LOCK).unlink()
            if is_new and not any(path.glob("part-*")):
                (path / MANIFEST).unlink()
                path.rmdir()

    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {name}: {error.strerror}") from None
    with file_lock(path / _LOCK), OnInterrupt(leave), ExitStack() as stack:
        stack.callback(leave)
        clean()
        _check_run(path, made)
        with atomic_write_text(path / MANIFEST) as stream:
            stream.write(json.dumps({"schema": SCHEMA, "made": made}) + "\n")
        summary = DatasetSummary(path)
        yield summary
        if odd := sorted({entry.name for entry in path.glob("part-*")} - {part.name for part in summary.parts}):
            raise InputError(f"{name}/{odd[0]} holds other sentences than the input; remove it")


def _check_run(path: Path, made: Mapping[str, str]) -> None:
    """Refuse a folder that holds other files, or parts of a run with other options."""
    name, names = _shown(str(path)), sorted({entry.name for entry in path.iterdir()} - {_LOCK, MANIFEST})
    if unknown := [entry for entry in names if not entry.startswith(("part-", "_part-"))]:
        raise InputError(f"{name} holds {visible(unknown[0])}; give an empty folder")
    before: Any = None
    with suppress(OSError, ValueError, RecursionError):
        before = json.loads((path / MANIFEST).read_bytes())
    if names and (not isinstance(before, dict) or before.get("schema") != SCHEMA):
        raise InputError(f"{name} holds parts, and no {MANIFEST} of attn {__version__}; give another folder")
    for option in {**before["made"], **made} if names else ():
        old, new = (visible(str(values.get(option, "not given"))) for values in (before["made"], made))
        if old != new:
            changed = f"{visible(option)} was {old} and is {new}"
            raise UsageError(f"{name} holds parts of another run: {changed}; give another folder, or those options")
