"""The parts of a dataset: each a Parquet file that is whole or absent, whoever writes it, and in whichever order.

Which sentences are in a part follows from their file and their numbers alone, and what it holds from them and the
options.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from attncli.analysis.heads import SurveyStates
from attncli.corpus.folders import Folder, folder_at
from attncli.corpus.work import Answer, Batch, Done, Result, Work, in_windows, part_of
from attncli.engines.source import CorpusItem
from attncli.errors import Failure, InputError, Metadata
from attncli.formats.parquet import Rows, typed, with_kept
from attncli.formats.states import schema, table_of

_NOTE = b"attncli.part"  # what a part says of itself
_ENDING = ".parquet"


def in_parts(sentences: Iterable[CorpusItem], files: Sequence[str] = ()) -> Iterator[Batch]:
    """Yield the sentences part by part, as `part-00000-00000`: which file it is of, and which of its parts.

    Args:
        sentences: file by file.
        files: the names of all files, as `kept["file"]` has them; none where there is one.
    """
    places = {name: place for place, name in enumerate(files)}

    def place(sentence: CorpusItem) -> tuple[int, int]:
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

    def empty(self, kept: Metadata) -> Any:
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

    def empty(self, kept: Metadata) -> Any:
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

    def empty(self, kept: Metadata) -> Any:
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


def _digest(sentences: Sequence[CorpusItem]) -> str:
    """Return what tells sentences from others, with what is kept of them."""
    digest = blake2b(digest_size=16)
    for number, text, kept in sentences:
        said = (number, [text.reason] if isinstance(text, Failure) else text, dict(kept))
        digest.update(repr(said).encode("utf-8", "replace"))
    return digest.hexdigest()


def is_part(name: str) -> bool:
    """Return whether a file is called as a part is."""
    return name.startswith("part-") and name.endswith(_ENDING)
