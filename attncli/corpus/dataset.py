"""Writes a corpus as a folder of parts, each whole or absent, so that any run of a command goes on where one ended.

Which sentences are in a part follows from their file and their numbers alone, and what it holds from them and the
job: whoever writes it, and in whichever order, it is the same. `_attncli.json` says what makes the parts; beside each
part stands a file of the same name that says of which sentences it is, and which of them are bad.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, groupby
from typing import Any, NamedTuple

from attncli._version import __version__
from attncli.corpus.folders import LOCK, Folder
from attncli.corpus.protocol import Batch, BatchFn, Job, Result
from attncli.corpus.run import batched
from attncli.engines.source import CorpusItem
from attncli.errors import Failure, InputError, UsageError
from attncli.signals import OnInterrupt
from attncli.text import plural, visible

SHARD_SIZE = 4096
"""Sentences of a part of a file."""
PICTURES = 256  # of a part: each takes as long as many sentences

SCHEMA = "attncli.dataset/2"
MANIFEST = "_attncli.json"


def in_shards(sentences: Iterable[CorpusItem], files: Sequence[str] = (), size: int | None = None) -> Iterator[Batch]:
    """Yield the sentences part by part, as `part-00000-00000`: which file it is of, and which of its parts.

    Args:
        sentences: file by file.
        files: the names of all files, as the metadata of sentences have them; none where there is one.
        size: of a part; None is `SHARD_SIZE`.
    """
    size = size or SHARD_SIZE
    indices = {name: index for index, name in enumerate(files)}

    def place(sentence: CorpusItem) -> tuple[int, int]:
        return indices.get(str(sentence.metadata.get("file")), 0), sentence.number // size

    for (file, shard), own in groupby(sentences, place):
        yield Batch(list(own), f"part-{file:05}-{shard:05}")


class ShardInfo(NamedTuple):
    """A part that is written."""

    name: str  # of its file
    sentences: int  # how many it is of
    was_there: bool  # whether an earlier run wrote it


@dataclass(frozen=True)
class ShardWriterJob:
    """Writes what another job makes of the sentences of a part into its file; see `Job`.

    A part that is there is not computed again, if it is of the same sentences. Its results are the same either way:
    those sentences that are bad or warned of, and last the part.
    """

    job: Job[Any]  # what is done with the sentences, whose results are pieces of `form`
    folder: str  # where parts are written: an absolute path, or a URL
    form: str = "parquet"  # of their files: parquet, jsonl, tsv or csv
    types: Mapping[str, str] = field(default_factory=dict)  # of the columns of a part without rows

    def open(self, open_job: Callable[[], BatchFn[Any]] | None = None) -> BatchFn[ShardInfo | None]:
        """Open the folder, and return the function from a part to its results.

        The job is opened for the first part that is not there, by `open_job` if there is one.
        """
        folder = Folder(self.folder)
        results_of: BatchFn[Any] | None = None

        def results(shard: Batch) -> Iterator[Result[ShardInfo | None]]:
            nonlocal results_of
            name = f"{shard.name}.{self.form}"
            note = _read_note(folder, name, shard)
            was_there = note is not None
            if note is None:
                results_of = results_of or (open_job or self.job.open)()
                note = self._write(folder, name, shard, results_of)
            metadata = {sentence.number: sentence.metadata for sentence in shard.sentences}
            for number, reason, warnings, notes in note["results"]:
                value = None if reason is None else Failure(reason, metadata=metadata[number])
                yield Result(number, value, tuple(warnings), tuple(notes))
            yield Result(shard.sentences[-1].number, ShardInfo(name, len(shard.sentences), was_there))

        return results

    def _write(self, folder: Folder, name: str, shard: Batch, results_of: BatchFn[Any]) -> dict[str, Any]:
        """Write a part, and then the note that says that it is whole; return the note."""
        results: list[tuple[int, str | None, Sequence[str], Sequence[str]]] = []

        def values() -> Iterator[tuple[int, Any]]:
            latest: tuple[str, ...] = ()
            for number, value, warnings, notes in chain.from_iterable(map(results_of, batched(shard.sentences))):
                news, latest = () if notes == latest else notes, notes
                reason = value.reason if isinstance(value, Failure) else None
                if reason is not None or warnings or news:
                    results.append((number, reason, warnings, news))
                yield number, value

        with folder.write(name) as path:
            if self.form == "parquet":
                from attncli.formats.parquet import write_parquet

                write_parquet(values(), self.types, path)
            else:
                from attncli.formats import joined

                with open(path, "w", encoding="utf-8", newline="") as stream:
                    stream.writelines(joined(self.form, values(), self.types))
            size = path.stat().st_size
        note = {"digest": _digest(shard.sentences), "size": size, "results": results}
        _write_json(folder, f"_{name}.json", note)
        return note


def _read_note(folder: Folder, part: str, shard: Batch) -> dict[str, Any] | None:
    """Return the note of a part that is there and whole, or None; InputError where it is of other sentences."""
    try:
        note = json.loads(folder.read(f"_{part}.json") or b"null")
        if note is None or folder.sizes().get(part) != note["size"]:
            return None
        digest = note["digest"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if digest != _digest(shard.sentences):
        raise InputError(f"{folder.name}/{part} holds other sentences; give another folder, or remove the file")
    return dict(note)


def _digest(sentences: Sequence[CorpusItem]) -> str:
    """Return what tells sentences from others."""
    digest = blake2b(digest_size=16)
    for number, text, metadata, _ in sentences:
        content = (number, [text.reason] if isinstance(text, Failure) else text, dict(metadata))
        digest.update(repr(content).encode("utf-8", "replace"))
    return digest.hexdigest()


def _write_json(folder: Folder, name: str, content: Mapping[str, Any]) -> None:
    with folder.write(name) as path:
        path.write_text(json.dumps(content) + "\n", encoding="utf-8")


@dataclass
class DatasetSummary:
    """What a run has written."""

    folder: str  # what it is called
    names: set[str] = field(default_factory=set)  # of the parts
    before: int = 0  # how many of them were there before
    sentences: int = 0  # of all

    def add(self, shard: ShardInfo) -> None:
        """Count a part."""
        self.names.add(shard.name)
        self.before += shard.was_there
        self.sentences += shard.sentences

    def __str__(self) -> str:
        there = f", {self.before} of them there before" if self.before else ""
        return f"{self.folder}: {plural(self.sentences, 'sentence')} in {plural(len(self.names), 'part')}{there}"


@contextmanager
def write_dataset(place: str, made: Mapping[str, str], files: Sequence[str] = ()) -> Iterator[DatasetSummary]:
    """Hold a folder for the parts of a run, and say in it what makes them; it is whole once the block succeeds.

    Args:
        place: of the folder: an absolute path, or a URL.
        made: what its numbers depend on, by names: the command, its options.
        files: the names of all files that are read, in order.

    Yields:
        What counts the parts.

    Raises:
        InputError: the folder holds something else, or parts of another run; or it cannot be written.
    """
    folder = Folder(place)
    manifest: dict[str, Any] = {"schema": SCHEMA, "attncli": __version__, "made": dict(made), "files": list(files)}
    with folder.hold():
        names = folder.sizes().keys() - {LOCK, MANIFEST}
        if others := sorted(name for name in names if not name.removeprefix("_").startswith("part-")):
            raise InputError(f"{folder.name} holds {visible(others[0])}; give an empty folder")
        if names:
            _check_same(folder, manifest)

        def undo() -> None:
            if folder.sizes().keys() <= {LOCK, MANIFEST}:
                folder.remove(MANIFEST)

        summary = DatasetSummary(folder.name)
        try:
            with OnInterrupt(undo):
                if not names:
                    _write_json(folder, MANIFEST, manifest)
                yield summary
        except BaseException:
            undo()
            raise
        if odd := sorted(name for name in folder.sizes().keys() - summary.names if name.startswith("part-")):
            raise InputError(f"{folder.name}/{odd[0]} holds sentences that are no longer in the input; remove it")
        whole = {"parts": len(summary.names), "sentences": summary.sentences}
        _write_json(folder, MANIFEST, {**manifest, "whole": whole})


def _check_same(folder: Folder, manifest: Mapping[str, Any]) -> None:
    """Raise UsageError for parts of another run, and InputError for those of which nothing says what they are of."""

    def named(manifest: Mapping[str, Any]) -> dict[str, Any]:
        files = {f"file {number}": name for number, name in enumerate(manifest["files"])}
        return {"attn": manifest["attncli"], **manifest["made"], **files}

    content = folder.read(MANIFEST)
    if content is None:
        raise InputError(f"{folder.name} holds parts without a {MANIFEST}; give another folder")
    try:
        there = json.loads(content)
        if there["schema"] != SCHEMA:
            raise ValueError
        old, new = named(there), named(manifest)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise InputError(f"{folder.name}/{MANIFEST} is not from attn {__version__}; give another folder") from None
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            before, now = (visible(str(one.get(name, "not given"))) for one in (old, new))
            raise UsageError(
                f"{folder.name} holds parts of another run: {visible(name)} was {before} and is {now}; give another "
                "folder, or the options of that run"
            )
