"""Writes a corpus as a folder of parts, each whole or absent, so that the same command resumes a run that was stopped.

The name of a part has the number of its file, its first and last sentence, and a digest. It is closed after some
sentences or some time, whichever comes first. `_attncli.json` records the options, and `_….errors.jsonl` of a part its
bad sentences: the underscore hides both from readers of the folder as one table.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, groupby
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from attncli._version import __version__
from attncli.corpus.protocol import Batch, BatchFn, Job, Result
from attncli.corpus.run import batched
from attncli.engines.source import CorpusItem
from attncli.errors import Failure, InputError, UsageError
from attncli.files import atomic_write_text, file_lock
from attncli.signals import OnInterrupt
from attncli.text import plural, visible

SHARD_SIZE = 4096
"""Sentences of a file that are handed out together, and the most of a part."""
PICTURES = 256  # likewise: each takes as long as many sentences
MOST_SECONDS = 60.0
"""Time after which a part is closed, the most that a killed run loses in each process."""

SCHEMA = "attncli.dataset/3"
MANIFEST = "_attncli.json"
_LOCK = "_attncli.lock"
_SIDE_FILE = ".attn-"
_PART = re.compile(r"(part-\d+)-(\d+)-(\d+)-[0-9a-f]{8}\.\w+")


def in_shards(sentences: Iterable[CorpusItem], files: Sequence[str] = (), size: int | None = None) -> Iterator[Batch]:
    """Yield the sentences of a file that are handed out together, as `part-00000` with the number of the file.

    Args:
        sentences: file by file.
        files: the names of all files, as the metadata of sentences have them; none where there is one.
        size: of a shard; None is `SHARD_SIZE`.
    """
    size = size or SHARD_SIZE
    indices = {name: index for index, name in enumerate(files)}

    def place(sentence: CorpusItem) -> tuple[int, int]:
        return indices.get(str(sentence.metadata.get("file")), 0), sentence.number // size

    for (file, _), own in groupby(sentences, place):
        yield Batch(list(own), f"part-{file:05}")


class PartInfo(NamedTuple):
    """A part that is written."""

    name: str  # of its file
    sentences: int  # how many it is of
    was_there: bool  # whether an earlier run wrote it


@dataclass(frozen=True)
class PartWriterJob:
    """Writes the results of another job into parts; see `Job`.

    Sentences of a finished part are not computed again. The results are the bad sentences, with the warnings of
    computed ones, and after those of a part its `PartInfo`.
    """

    job: Job[Any]  # its results are pieces of `form`
    folder: str  # where parts are written, an absolute path
    form: str = "parquet"  # of their files: parquet, jsonl, tsv or csv
    types: Mapping[str, str] = field(default_factory=dict)  # of the columns of a part without rows
    seconds: float = 2.0  # of the first part of a process; each has twice the time of the one before

    def open(self, open_job: Callable[[], BatchFn[Any]] | None = None) -> BatchFn[PartInfo | None]:
        """Return the function from a shard to its results.

        The job is opened for the first sentence that no part holds, by `open_job` if there is one.
        """
        results_of: BatchFn[Any] | None = None
        seconds = self.seconds

        def results(shard: Batch) -> Iterator[Result[PartInfo | None]]:
            nonlocal results_of, seconds
            for part, own in _split(shard, Path(self.folder)):
                if part is not None:
                    yield from self._read(part, own, shard.name)
                    continue
                results_of = results_of or (open_job or self.job.open)()
                computed = _computed(own, results_of)
                for first in computed:
                    yield from self._write(shard.name, chain([first], computed), seconds)
                    seconds = min(2 * seconds, MOST_SECONDS)

        return results

    def _read(self, part: str, sentences: Sequence[CorpusItem], prefix: str) -> Iterator[Result[PartInfo | None]]:
        """Yield the results of a part that is there; InputError where it is of other sentences."""
        if part != self._name(prefix, sentences):
            raise InputError(f"{_shown(self.folder)}/{part} holds other sentences; give another folder, or remove it")
        metadata = {sentence.number: sentence.metadata for sentence in sentences}
        errors = _errors_of(Path(self.folder, part))
        try:
            lines = errors.read_bytes().splitlines() if errors.exists() else ()
            reasons = {error["sentence"]: error["error"] for error in map(json.loads, lines)}
        except (OSError, ValueError, TypeError, KeyError):
            raise InputError(f"cannot read {_shown(str(errors))}; remove it and {part}") from None
        for number, reason in reasons.items():
            yield Result(number, Failure(reason, metadata=metadata.get(number, {})))
        yield Result(sentences[-1].number, PartInfo(part, len(sentences), True))

    def _write(
        self, prefix: str, computed: Iterator[tuple[CorpusItem, Result[Any], bool]], seconds: float
    ) -> Iterator[Result[PartInfo | None]]:
        """Write a part, and yield its results once it is whole."""
        sentences: list[CorpusItem] = []
        results: list[Result[None]] = []

        def values() -> Iterator[tuple[int, Any]]:
            latest: tuple[str, ...] = ()
            began = 0.0
            for sentence, (number, value, warnings, notes), is_last in computed:
                sentences.append(sentence)
                news, latest = () if notes == latest else notes, notes
                if isinstance(value, Failure) or warnings or news:
                    results.append(Result(number, value if isinstance(value, Failure) else None, warnings, news))
                yield number, value
                began = began or monotonic()  # the first sentence opens the model and the like
                # A batch that is cut in two may have other last digits, so that only a slow one is.
                if monotonic() - began >= (seconds if is_last else MOST_SECONDS):
                    return

        with _explained(self.folder), open(Path(self.folder, f"{_SIDE_FILE}{os.urandom(6).hex()}"), "wb") as sink:
            if self.form == "parquet":
                from attncli.formats.parquet import write_parquet

                write_parquet(values(), self.types, sink)
            else:
                from attncli.formats import joined

                sink.writelines(piece.encode() for piece in joined(self.form, values(), self.types))
            sink.flush()
            os.fsync(sink.fileno())  # it is on the disk before it has its name
            part = Path(self.folder, self._name(prefix, sentences))
            if errors := [(one.number, one.value) for one in results if isinstance(one.value, Failure)]:
                with atomic_write_text(_errors_of(part)) as stream:
                    for number, value in errors:
                        file = {"file": value.metadata["file"]} if "file" in value.metadata else {}
                        stream.write(json.dumps({"sentence": number, **file, "error": value.reason}) + "\n")
            os.replace(sink.name, part)
        yield from results
        yield Result(sentences[-1].number, PartInfo(part.name, len(sentences), False))

    def _name(self, prefix: str, sentences: Sequence[CorpusItem]) -> str:
        digest = blake2b(digest_size=4)
        for number, text, metadata, _ in sentences:
            content = (number, [text.reason] if isinstance(text, Failure) else text, dict(metadata))
            digest.update(repr(content).encode("utf-8", "replace"))
        return f"{prefix}-{sentences[0].number:010}-{sentences[-1].number:010}-{digest.hexdigest()}.{self.form}"


def _split(shard: Batch, folder: Path) -> Iterator[tuple[str | None, list[CorpusItem]]]:
    """Yield the sentences of a shard by the part that holds them, or None; the folder is read anew for each shard."""
    first, last = shard.sentences[0].number, shard.sentences[-1].number
    parts = [match for match in map(_PART.fullmatch, _names(folder)) if match and match[1] == shard.name]
    near = [match for match in parts if int(match[2]) <= last and int(match[3]) >= first]

    def part_of(sentence: CorpusItem) -> str | None:
        return next((part[0] for part in near if int(part[2]) <= sentence.number <= int(part[3])), None)

    for part, own in groupby(shard.sentences, part_of):
        yield part, list(own)


def _computed(
    sentences: Sequence[CorpusItem], results_of: BatchFn[Any]
) -> Iterator[tuple[CorpusItem, Result[Any], bool]]:
    """Yield sentences with their results, and whether each is the last of its batch."""
    for batch in batched(sentences):
        for sentence, result in zip(batch.sentences, results_of(batch), strict=True):
            yield sentence, result, sentence is batch.sentences[-1]


def _errors_of(part: Path) -> Path:
    return part.with_name(f"_{part.stem}.errors.jsonl")


def _names(folder: Path) -> list[str]:
    with _explained(str(folder)):
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_file())


def _shown(folder: str) -> str:
    return visible(folder.removeprefix(f"{os.getcwd()}/"))


@contextmanager
def _explained(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {_shown(folder)}: {error.strerror or error}") from None


@dataclass
class DatasetSummary:
    """Counts of a run's output."""

    folder: Path
    names: set[str] = field(default_factory=set)  # of the parts
    before: int = 0  # how many of them were there before
    sentences: int = 0  # of all

    def add(self, part: PartInfo) -> None:
        """Count a part."""
        self.names.add(part.name)
        self.before += part.was_there
        self.sentences += part.sentences

    def kept(self) -> str:
        """Return a note on the output of a stopped run, and on how to resume it."""
        count = sum(name.startswith("part-") for name in _names(self.folder))
        what = f"{_shown(str(self.folder))} has {plural(count, 'part')}; run the same command again to resume"
        return what if count else "no part was written yet"

    def __str__(self) -> str:
        there = f", {self.before} of them there before" if self.before else ""
        parts = f"{plural(self.sentences, 'sentence')} in {plural(len(self.names), 'part')}"
        return f"{_shown(str(self.folder))}: {parts}{there}"


@contextmanager
def write_dataset(folder: str, made: Mapping[str, str], files: Sequence[str] = ()) -> Iterator[DatasetSummary]:
    """Lock a folder for the parts of a run and record its options there; it is whole once the block succeeds.

    Args:
        folder: an absolute path.
        made: the inputs of its numbers, by names: the command, its options.
        files: the names of all files that are read, in order.

    Raises:
        InputError: the folder holds other files, or cannot be written.
        UsageError: it holds parts of another run.
    """
    path, shown = Path(folder), _shown(folder)
    is_new = not path.is_dir()
    manifest = {"attn": __version__, **made, **{f"file {number}": name for number, name in enumerate(files)}}

    def write_manifest(**whole: Any) -> None:
        with atomic_write_text(path / MANIFEST) as stream:
            stream.write(json.dumps({"schema": SCHEMA, "made": manifest, **whole}) + "\n")

    def clean() -> None:
        names = _names(path)
        parts = {f"_{name.partition('.')[0]}.errors.jsonl" for name in names if name.startswith("part-")}
        for name in names:
            is_lost = name.endswith(".errors.jsonl") and name not in parts
            if name.startswith(_SIDE_FILE) or is_lost or (name == MANIFEST and not parts):
                (path / name).unlink(missing_ok=True)

    def leave() -> None:
        with suppress(OSError, InputError):
            clean()
            (path / _LOCK).unlink()
            if is_new:
                path.rmdir()

    with ExitStack() as stack:
        with _explained(folder):
            path.mkdir(exist_ok=True)
            stack.enter_context(file_lock(path / _LOCK))
        stack.enter_context(OnInterrupt(leave))
        stack.callback(leave)
        clean()
        names = set(_names(path)) - {_LOCK, MANIFEST}
        if others := sorted(name for name in names if not name.startswith(("part-", "_part-"))):
            raise InputError(f"{shown} holds {visible(others[0])}; give an empty folder")
        if names:
            _check_same(path / MANIFEST, manifest)
        else:
            write_manifest()
        summary = DatasetSummary(path)
        yield summary
        if odd := sorted(name for name in set(_names(path)) - summary.names if name.startswith("part-")):
            raise InputError(f"{shown}/{odd[0]} holds sentences that are no longer in the input; remove it")
        write_manifest(whole={"parts": len(summary.names), "sentences": summary.sentences})


def _check_same(path: Path, made: Mapping[str, str]) -> None:
    """Raise UsageError for parts of another run, and InputError where no options are recorded."""
    shown = _shown(str(path.parent))
    try:
        content = json.loads(path.read_bytes())
        before = dict(content["made"]) if content["schema"] == SCHEMA else {}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        before = {}
    if not before:
        raise InputError(f"{shown} holds parts, and no {MANIFEST} of attn {__version__}; give another folder")
    for name in {**before, **made}:
        if before.get(name) != made.get(name):
            old, new = (visible(str(one.get(name, "not given"))) for one in (before, made))
            raise UsageError(
                f"{shown} holds parts of another run: {visible(name)} was {old} and is {new}; give another folder, or "
                "the options of that run"
            )
