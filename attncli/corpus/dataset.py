"""A corpus as a folder of parts, each a Parquet file that is whole or absent, so that any run goes on where one ended.

Which sentences are in a part follows from their file and their numbers alone, and what a part holds from them and the
options, which the folder says in `_attncli.json`. So parts may be written in any order, by any process of any machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from typing import IO, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from attncli._version import __version__
from attncli.analysis.heads import SurveyStates
from attncli.corpus.folders import LOCK, Folder, folder_at
from attncli.corpus.work import Answer, Batch, Done, Result, Work, in_windows, part_of
from attncli.errors import Failure, InputError, Kept, UsageError
from attncli.formats.parquet import Rows, typed, with_kept
from attncli.formats.states import schema, table_of
from attncli.interruption import Undoing
from attncli.sources.stream import Sentence
from attncli.text import counted, visible

SCHEMA = "attncli.dataset/1"
MANIFEST = "_attncli.json"
_NOTE = b"attncli.part"  # what a part says of itself
_ENDING = ".parquet"


def in_parts(sentences: Iterable[Sentence], files: Sequence[str] = ()) -> Iterator[Batch]:
    """Yield the sentences part by part, as `part-00000-00000`: which file it is of, and which of its parts.

    Args:
        sentences: file by file.
        files: the names of all files, as `kept["file"]` has them; none where there is one.
    """
    places = {name: place for place, name in enumerate(files)}

    def place(sentence: Sentence) -> tuple[int, int]:
        return places.get(str(sentence.kept.get("file")), 0), part_of(sentence)

    for (file, of_file), own in groupby(sentences, place):
        yield Batch(f"part-{file:05}-{of_file:05}", list(own))


class Receipt(NamedTuple):
    """What is said of a part that is written.

    Attributes:
        name: of its file.
        rows: how many it has.
        size: in bytes.
        sentences: how many it is of.
        failures: how many of these were bad.
        was_there: whether an earlier run wrote it.
    """

    name: str
    rows: int
    size: int
    sentences: int
    failures: int
    was_there: bool


Taken = TypeVar("Taken", contravariant=True)


class Table(Protocol[Taken]):
    """What the results of a part become."""

    def add(self, result: Taken, /) -> Iterable[Any]:
        """Take a result, and return the rows that are there with it, as tables of pyarrow."""

    def rest(self) -> Iterable[Any]:
        """Return the rows that are there once all results are."""

    def empty(self, kept: Kept) -> Any:
        """Return the schema of a part without rows, whose file says so much of its sentences besides."""


class Each(NamedTuple):
    """Results that are tables each; see `Table`.

    Attributes:
        types: of the columns of a part without rows.
    """

    types: Mapping[str, str]

    def add(self, result: Iterable[Any], /) -> Iterable[Any]:
        """Return the tables."""
        return result

    def rest(self) -> Iterable[Any]:
        """Return nothing more."""
        return ()

    def empty(self, kept: Kept) -> Any:
        """Return the schema of no rows."""
        return with_kept(typed(self.types).empty_table(), kept).schema


class Merged:
    """States of heads, which become one; see `Table`."""

    def __init__(self) -> None:
        self._states = SurveyStates(None, {})

    def add(self, result: SurveyStates | None, /) -> Iterable[Any]:
        """Take in what a window of sentences says of the heads; None where one of them is warned of."""
        if result is not None:
            self._states = self._states.merged(result)
        return ()

    def rest(self) -> Iterable[Any]:
        """Return the one table."""
        return [table_of(self._states)]

    def empty(self, kept: Kept) -> Any:
        """Return the schema of states."""
        return schema()


@dataclass(frozen=True)
class Parts(Generic[Result]):
    """A work whose batches are parts: what another work answers is written into the file of each; see `Work`.

    A part that is there is not computed again, if it is of the same sentences. Its answers are the same either way:
    those that are bad or warned of, in each window of `stream.windows` the number of the last one, and a receipt.

    Attributes:
        work: what answers the windows of a part, as those of a stream, so that its numbers are the same in any form.
        folder: where parts are written: an absolute path, or a URL.
        table: begins what the results of a part become.
    """

    work: Work[Result]
    folder: str
    table: Callable[[], Table[Result]]
    by_sentence: ClassVar[bool] = False

    def open(self) -> Done[Receipt | None]:
        """Open the folder; the other work is opened for the first part that is not there."""
        return self.on(self.work.open)

    def on(self, opened: Callable[[], Done[Result]]) -> Done[Receipt | None]:
        """Return what answers parts, given what opens the other work."""
        folder = folder_at(self.folder)
        done: Done[Result] | None = None

        def answered(part: Batch) -> Iterator[Answer[Receipt | None]]:
            nonlocal done
            if (there := _there(folder, part.name + _ENDING)) is None:
                done = done or opened()
                return self._written(folder, part, done)
            return _again(folder, part, *there)

        return answered

    def _written(self, folder: Folder, part: Batch, done: Done[Result]) -> Iterator[Answer[Receipt | None]]:
        """Write a part that is not there, and yield its answers."""
        name, table = part.name + _ENDING, self.table()
        note: dict[str, Any] = {"digest": _digest(part.sentences), "sentences": len(part.sentences), "said": []}
        known: tuple[str, ...] = ()
        with folder.written(name) as path:
            with open(path, "wb") as sink, Rows(sink, table.empty(part.sentences[0].kept)) as rows_of:
                for window in in_windows(part.sentences):
                    for number, result, said, notes in done(window):
                        bad = result if isinstance(result, Failure) else None
                        if not isinstance(result, Failure):
                            for each in table.add(result):
                                rows_of.add(each)
                        notes, known = () if notes == known else notes, notes
                        if bad or said or notes:
                            note["said"].append([number, bad and bad.reason, said, notes])
                            yield Answer(number, bad, said, notes)
                    yield Answer(window.sentences[-1].number, None)
                for each in table.rest():
                    rows_of.add(each)
                rows_of.notes[_NOTE.decode()] = json.dumps(note)
            size = path.stat().st_size
        yield Answer(part.sentences[-1].number, _receipt(name, note, rows_of.count, size, was_there=False))


def _again(
    folder: Folder, part: Batch, note: Mapping[str, Any], rows: int, size: int
) -> Iterator[Answer[Receipt | None]]:
    """Yield the answers of a part that is there, in the order in which they were yielded when it was written.

    Raises:
        InputError: it is of other sentences.
    """
    name = part.name + _ENDING
    if note.get("digest") != _digest(part.sentences):
        raise InputError(
            f"{folder.name}/{name} is of other sentences; give another folder, or remove the file to compute it again"
        )
    said = iter([*note["said"], [part.sentences[-1].number + 1, None, (), ()]])
    kept = {one.number: one.kept for one in part.sentences}
    number, reason, warnings, notes = next(said)
    for window in in_windows(part.sentences):
        last = window.sentences[-1].number
        while number <= last:
            result = None if reason is None else Failure(reason, kept=kept[number])
            yield Answer(number, result, tuple(warnings), tuple(notes))
            number, reason, warnings, notes = next(said)
        yield Answer(last, None)
    yield Answer(part.sentences[-1].number, _receipt(name, note, rows, size, was_there=True))


def _receipt(name: str, note: Mapping[str, Any], rows: int, size: int, was_there: bool) -> Receipt:
    failures = sum(reason is not None for _, reason, _, _ in note["said"])
    return Receipt(name, rows, size, note["sentences"], failures, was_there)


def _there(folder: Folder, name: str) -> tuple[dict[str, Any], int, int] | None:
    """Return what a part says of itself, its rows and its bytes; None where there is none that is whole."""
    import pyarrow
    from pyarrow.parquet import read_metadata

    file = folder.opened(name)
    if file is None:
        return None
    with file:
        try:
            found = read_metadata(file)
        except pyarrow.ArrowInvalid:  # cut off by something else than a run of ours: it is written again
            return None
        return _note(found.metadata), found.num_rows, file.seek(0, 2)


def _note(metadata: Mapping[bytes, bytes] | None) -> dict[str, Any]:
    """Return what a part says of itself; nothing where that is not what a run writes."""
    try:
        note = json.loads((metadata or {})[_NOTE])
        for number, reason, said, notes in note["said"]:
            if type(number) is not int or not isinstance(reason, str | None):
                return {}
            if not all(isinstance(each, str) for each in [*said, *notes]):
                return {}
        return dict(note) if type(note["sentences"]) is int else {}
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}


def _digest(sentences: Sequence[Sentence]) -> str:
    """Return what tells sentences from others, with what is kept of them."""
    digest = blake2b(digest_size=16)
    for number, text, kept in sentences:
        said = (number, [text.reason] if isinstance(text, Failure) else text, dict(kept))
        digest.update(repr(said).encode("utf-8", "replace"))
    return digest.hexdigest()


class Tally:
    """What a run has written, from the receipts of its parts.

    Attributes:
        parts: how many there are.
        before: how many of them were there before.
        rows: of all.
        sentences: of all.
        failures: how many of these were bad.
    """

    def __init__(self) -> None:
        self.parts = self.before = self.rows = self.sentences = self.failures = 0
        self.names: set[str] = set()

    def add(self, receipt: Receipt) -> None:
        """Count a part."""
        self.parts += 1
        self.before += receipt.was_there
        self.rows += receipt.rows
        self.sentences += receipt.sentences
        self.failures += receipt.failures
        self.names.add(receipt.name)

    def __str__(self) -> str:
        there = f", {self.before} of them there before" if self.before else ""
        return f"{counted(self.sentences, 'sentence')} in {counted(self.parts, 'part')}{there}"


@contextmanager
def dataset(place: str, made: Mapping[str, str], files: Sequence[str] = ()) -> Iterator[Tally]:
    """Hold a folder for the parts of a run, and say in it what makes them; it is whole once the block succeeds.

    Args:
        place: of the folder: an absolute path, or a URL.
        made: what its numbers depend on, by names: the command, its options.
        files: the names of all files that are read, in order.

    Yields:
        What takes the receipts of all parts.

    Raises:
        InputError: the folder holds something else, or parts of another run; or it cannot be written.
    """
    folder = folder_at(place)
    manifest: dict[str, Any] = {"schema": SCHEMA, "attncli": __version__, "made": dict(made), "files": list(files)}
    with folder.held():
        names = folder.names() - {LOCK}
        others = sorted(name for name in names if name != MANIFEST and not _is_part(name))
        if others:
            raise InputError(f"{folder.name} holds {visible(others[0])}; give a folder that holds the parts alone")
        has_parts = any(map(_is_part, names))
        if has_parts:
            _check_same(folder, manifest)
        else:
            _say(folder, manifest)
        tally = Tally()

        def undo() -> None:
            if not has_parts and not any(map(_is_part, folder.names())):
                folder.remove(MANIFEST)

        try:
            with Undoing(undo):
                yield tally
        except BaseException:
            undo()
            raise
        if odd := sorted(name for name in folder.names() if _is_part(name) and name not in tally.names):
            raise InputError(f"{folder.name}/{odd[0]} is of sentences that are no longer there; remove it")
        whole = {name: getattr(tally, name) for name in ("parts", "rows", "sentences", "failures")}
        _say(folder, {**manifest, "whole": whole})


def parts_of(place: str) -> list[str]:
    """Return the names of the parts of a dataset, sorted.

    Raises:
        InputError: it is none, or the run that writes it has not ended.
    """
    folder = folder_at(place)
    manifest = _manifest(folder)
    parts = sorted(filter(_is_part, folder.names()))
    if manifest is None:
        raise InputError(f"{folder.name} is no folder that attn has written parts into")
    if "whole" not in manifest or manifest["whole"]["parts"] != len(parts):
        raise InputError(
            f"{folder.name} is not whole: {counted(len(parts), 'part')} of it {'is' if len(parts) == 1 else 'are'} "
            "there; run the command that writes it again, which goes on, or name the parts that are to be read"
        )
    return parts


def opened_parts(place: str) -> Iterator[tuple[IO[bytes], str]]:
    """Yield the parts of a dataset, open to be read one after the other, with their names; see `parts_of`."""
    folder = folder_at(place)
    for name in parts_of(place):
        file = folder.opened(name)
        if file is not None:
            with file:
                yield file, f"{folder.name}/{name}"


def _is_part(name: str) -> bool:
    return name.startswith("part-") and name.endswith(_ENDING)


def _say(folder: Folder, manifest: Mapping[str, Any]) -> None:
    with folder.written(MANIFEST) as path:
        path.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _manifest(folder: Folder) -> dict[str, Any] | None:
    """Return what a folder says of its parts; None where it says nothing."""
    file = folder.opened(MANIFEST)
    if file is None:
        return None
    with file:
        try:
            found = json.loads(file.read())
            whole = found.get("whole", {"parts": 0})
            if found["schema"] != SCHEMA or type(whole["parts"]) is not int:
                raise ValueError
            said = [found["attncli"], *found["made"].values(), *found["files"]]
            if not all(isinstance(each, str) for each in said):
                raise TypeError
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise InputError(f"{folder.name}/{MANIFEST} is none that attn {__version__} writes") from None
    return dict(found)


def _check_same(folder: Folder, manifest: Mapping[str, Any]) -> None:
    """Make sure that the parts that are there are those of this run.

    Raises:
        UsageError: they are of another one.
    """
    there = _manifest(folder)
    if there is None:
        raise InputError(f"{folder.name} holds parts, and no {MANIFEST} that says what made them; give another folder")
    old, new = map(_told, (there, manifest))
    for name in {**old, **new}:
        before, now = old.get(name), new.get(name)
        if before != now:
            raise UsageError(
                f"{folder.name} holds parts of another run: {visible(name)} was {_shown(before)} and is "
                f"{_shown(now)}; give another folder, or the options of that run"
            )


def _told(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return what a folder says of what made it, by names."""
    files = {f"file {number}": name for number, name in enumerate(manifest["files"])}
    return {"attn": manifest["attncli"], **manifest["made"], **files}


def _shown(value: str | None) -> str:
    return "not given" if value is None else visible(value)
