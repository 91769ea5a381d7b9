"""The sentences of a corpus, file by file: text, JSON Lines, CSV, TSV and Parquet, here or elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal

from attncli.corpus.listing import listed
from attncli.corpus.places import File, is_url, shown
from attncli.engines.source import CorpusItem
from attncli.errors import NO_METADATA, Failure, InputError, Metadata, UsageError
from attncli.text import plural, visible

Kind = Literal["text", "messages", "records", "csv", "tsv", "parquet"]
_KINDS: dict[str, Kind] = {
    ".jsonl": "records",
    ".ndjson": "records",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
_SAID: dict[Kind, str] = {
    "text": "text",
    "messages": "of messages",
    "records": "JSON Lines",
    "csv": "CSV",
    "tsv": "TSV",
    "parquet": "Parquet",
}
_BETWEEN: dict[Kind, str] = {"csv": ",", "tsv": "\t"}
_USUAL = "text"  # the field, or the column


@dataclass(frozen=True)
class Corpus:
    """Files of sentences, and how they are read; it can be sent to where one of them is read.

    Attributes:
        place: what they were found by.
        files: all of them, sorted.
        field: of JSON Lines, that holds the text; None is `text`, and with `chat` the line itself.
        column: of a table, that holds the text; None is `text`.
        keep: other fields and columns, which each sentence carries.
        whole: whether a file of text is one sentence, newlines and all.
        chat: whether .json and JSON Lines hold lists of messages.
    """

    place: str
    files: tuple[File, ...]
    field: str | None = None
    column: str | None = None
    keep: tuple[str, ...] = ()
    whole: bool = False
    chat: bool = False

    @classmethod
    def of(
        cls,
        place: str,
        *,
        field: str | None = None,
        column: str | None = None,
        keep: str | None = None,
        whole: bool = False,
        chat: bool = False,
    ) -> Corpus:
        """Return the corpus of a file, a folder, a glob or a URL, and how its options say that it is read.

        Raises:
            UsageError: an option does not apply to what is there.
            InputError: there is no file.
            LoadError: what would look for files is not installed.
        """
        kept = tuple(dict.fromkeys(keep.split(","))) if keep is not None else ()
        found = cls(place, listed(place), field, column, kept, whole, chat)
        found._check()
        return found

    def _check(self) -> None:
        """Raise UsageError for options that no file has a use for, or that one file has none for."""
        kinds = {self.kind(file): file for file in reversed(self.files)}  # and the first file of each

        def refuse(option: str, kind: Kind, why: str) -> None:
            raise UsageError(f"{option} does not apply to {visible(kinds[kind].name)}, which is {_SAID[kind]}; {why}")

        first = self.kind(self.files[0])
        if self.field is not None and "records" not in kinds:
            hint = "" if first in ("text", "messages") else "; --column names one of this"
            refuse("--field", first, f"it names a field of .jsonl or .ndjson{hint}")
        if self.column is not None and kinds.keys().isdisjoint({"csv", "tsv", "parquet"}):
            hint = "; --field names one of this" if first == "records" else ""
            refuse("--column", first, f"it names a column of .csv, .tsv or .parquet{hint}")
        for kind in kinds:
            if self.keep and kind in ("text", "messages"):
                refuse("--keep", kind, "what it keeps are fields of .jsonl, or columns of .csv, .tsv and .parquet")
            if self.whole and kind != "text":
                refuse("--whole", kind, "drop it")
        if not all(self.keep) or any("\ud800" <= letter <= "\udfff" for letter in "".join(self.keep)):
            raise UsageError(f"--keep '{visible(','.join(self.keep))}': expected names with commas, such as id,label")
        if "file" in self.keep and len(self.files) > 1:
            raise UsageError("--keep file: where several files are read, file says which one it is; drop it")

    def kind(self, file: File) -> Kind:
        """Return what is in a file, by its ending; what has no other is text."""
        kind = _KINDS.get(file.ending, "text")
        is_chat = self.chat and (file.ending == ".json" or (kind == "records" and self.field is None))
        return "messages" if is_chat else kind

    def has_names(self, file: File) -> bool:
        """Return whether what is in a file has fields or columns."""
        return self.kind(file) not in ("text", "messages")

    def _is_whole(self, file: File) -> bool:
        return self.whole or (self.kind(file) == "messages" and file.ending == ".json")

    @property
    def is_one(self) -> bool:
        """Whether there is one text, or one list of messages."""
        return len(self.files) == 1 and self._is_whole(self.files[0])

    def sentences(self, note: Callable[[str], object] = lambda _: None) -> Iterator[CorpusItem]:
        """Yield the sentences of all files, one file after the other; what is empty is left out.

        A file that cannot be read has a failure for a sentence, in the place of the first one that it lacks. Where
        there are several files, `kept` says which one a sentence is of.

        Args:
            note: is told how many were left out.

        Raises:
            InputError: there is no sentence, or the only file cannot be read at all.
            LoadError: what reads a file is not installed.
        """
        empty, is_any = count(), False
        for index in range(len(self.files)):
            for sentence in self.sentences_of(index, lambda: next(empty)):
                is_any = True
                yield sentence
        self.check_read(is_any, next(empty), note)

    def check_read(self, is_any: bool, empty: int, note: Callable[[str], object]) -> None:
        """Say, once all files are read, how many texts were empty and left out.

        Raises:
            InputError: there is no sentence.
        """
        name, has_lines = visible(shown(self.place)), all(self.kind(file) == "text" for file in self.files)
        if not is_any:
            raise InputError(f"{name} holds no sentence; expected one {'a line' if has_lines else 'a row'}")
        if empty:
            what = plural(empty, f"empty {'line' if has_lines else 'text'}")
            note(f"{name}: {what} {'was' if empty == 1 else 'were'} skipped")

    def last_number(self) -> int | None:
        """Return the number of the last line or row of the only file, if there is a quick way to know."""
        (file, *others) = self.files
        is_quick = not (others or file.root or file.packing)
        kind = self.kind(file)
        try:
            if is_quick and kind == "parquet":
                from attncli.corpus.tables import count_rows

                return count_rows(file)
            if is_quick and kind not in ("csv", "tsv") and os.path.isfile(file.path):
                from attncli.corpus.lines import count as count_lines

                with file.opened() as stream:
                    return count_lines(stream)
        except InputError:  # which is said where it is read
            pass
        return None

    def sentences_of(self, index: int, leave_out: Callable[[], object] = lambda: None) -> Iterator[CorpusItem]:
        """Yield the sentences of one file, see `sentences`; `leave_out` is called for each empty one."""
        for sentence in self._all_of(index):
            if sentence.text == "":
                leave_out()
            else:
                yield sentence

    def _all_of(self, index: int) -> Iterator[CorpusItem]:
        """Yield the sentences of a file, also the empty ones, and a failure in the place of what cannot be read."""
        file, number = self.files[index], 0
        kept: Metadata = {"file": file.name} if len(self.files) > 1 else NO_METADATA
        try:
            for sentence in self._read(file):
                number = sentence.number
                yield _carrying(sentence, kept) if kept else sentence
        except InputError as error:
            if number == 0 and not kept:
                raise
            yield _carrying(CorpusItem(number + 1, Failure(str(error))), kept)

    def _read(self, file: File) -> Iterator[CorpusItem]:
        """Yield the sentences of a file by its kind.

        Raises:
            InputError: it cannot be read, or not to its end.
            LoadError: what reads it is not installed.
        """
        kind, name = self.kind(file), visible(file.name)
        if kind == "parquet":
            from attncli.corpus.tables import parquet_rows

            yield from parquet_rows(file, self.column or _USUAL, self.keep, self.chat)
            return
        with file.opened() as stream:
            if kind in ("csv", "tsv"):
                from attncli.corpus.tables import rows_in

                yield from rows_in(stream, name, _BETWEEN[kind], self.column or _USUAL, self.keep)
            elif kind == "records":
                from attncli.corpus.records import records_in

                yield from records_in(stream, name, self.field or _USUAL, self.keep, self.chat)
            else:
                from attncli.corpus.lines import sentences_in

                lines = sentences_in(stream, name, self._is_whole(file))
                yield from lines if kind == "text" else map(_conversation, lines)


def names_of(*places: str) -> list[str]:
    """Return the fields or columns of the first file, if it is here and has such.

    Raises:
        AttnError: it cannot be read.
    """
    for file in (file for place in places if not is_url(place) for file in listed(place)):
        kind = _KINDS.get(file.ending, "text")
        if kind == "parquet":
            from attncli.corpus.tables import columns_of

            return columns_of(file)
        with file.opened() as stream:
            if kind in ("csv", "tsv"):
                from attncli.corpus.tables import header_of

                return header_of(stream, visible(file.name), _BETWEEN[kind])
            if kind == "records":
                from attncli.corpus.records import names_in

                return names_in(stream, visible(file.name))
    return []


def _carrying(sentence: CorpusItem, kept: Metadata) -> CorpusItem:
    """Return a sentence that keeps more, and its failure with it."""
    number, text, others = sentence
    kept = {**kept, **others}
    return CorpusItem(number, text._replace(kept=kept) if isinstance(text, Failure) else text, kept)


def _conversation(sentence: CorpusItem) -> CorpusItem:
    """Return what a text spells in JSON."""
    from attncli.encoding.chat import Conversation

    if not sentence.text or isinstance(sentence.text, Failure):
        return sentence
    try:
        return sentence._replace(text=Conversation.parsed(sentence.text))
    except InputError as error:
        return sentence._replace(text=Failure(str(error)))
