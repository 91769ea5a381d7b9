"""Reads the sentences of a corpus, file by file: text, JSON Lines, CSV, TSV and Parquet, here or behind a URL."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from attncli.corpus import readers
from attncli.corpus.files import SentenceFile, find_files, without_password
from attncli.engines.source import CorpusItem
from attncli.errors import NO_METADATA, Failure, InputError, Metadata, UsageError
from attncli.text import plural, visible

Kind = Literal["text", "messages", "JSON Lines", "CSV", "TSV", "Parquet"]
_KINDS: dict[str, Kind] = {
    ".jsonl": "JSON Lines", ".ndjson": "JSON Lines", ".csv": "CSV", ".tsv": "TSV", ".parquet": "Parquet",
}  # fmt: skip
_DELIMITERS: dict[Kind, str] = {"CSV": ",", "TSV": "\t"}


@dataclass(frozen=True)
class SentenceReader:
    """Files of sentences, and how they are read."""

    location: str  # the path or URL that they were found by
    files: tuple[SentenceFile, ...]  # all of them, sorted
    # the column or field that holds the text; None is `text`, and with `chat` a line of JSON itself
    column: str | None = None
    whole: bool = False  # whether a file of text is one sentence, newlines and all
    chat: bool = False  # whether .json and JSON Lines hold lists of messages

    @classmethod
    def of(cls, location: str, *, column: str | None = None, whole: bool = False, chat: bool = False) -> SentenceReader:
        """Return the reader of a file, a folder, a glob or a URL.

        Raises:
            UsageError: an option does not apply to these files.
            InputError: there is no file.
            LoadError: a package that lists files is not installed.
        """
        reader = cls(location, find_files(location), column, whole, chat)
        kinds = {reader.kind(file): file for file in reversed(reader.files)}  # and the first file of each
        if column is not None and kinds.keys() <= {"text", "messages"}:
            option, file, remedy = "column", reader.files[0], "it applies to .csv, .tsv, .parquet, .jsonl and .ndjson"
        elif whole and (others := [file for kind, file in kinds.items() if kind != "text"]):
            option, file, remedy = "whole", others[0], "drop it"
        else:
            return reader
        raise UsageError(f"--{option} does not apply to {visible(file.name)}, which is {reader.kind(file)}; {remedy}")

    def kind(self, file: SentenceFile) -> Kind:
        """Return the kind of a file, by its ending; text by default."""
        ending = file.endings[0]
        kind = _KINDS.get(ending, "text")
        is_chat = self.chat and (ending == ".json" or (kind == "JSON Lines" and self.column is None))
        return "messages" if is_chat else kind

    @cached_property
    def names_pictures(self) -> bool:
        """Whether lines name pictures besides their texts: JSON Lines on this machine whose first text does."""
        from attncli.encoding.pictures import PicturedText

        file = self.files[0]
        if not file.root and self.kind(file) == "JSON Lines" and os.path.isfile(file.path):
            with suppress(InputError), closing(self._read(file)) as lines:  # an error is raised where it is read
                return isinstance(next((item.text for item in lines if item.text), None), PicturedText)
        return False

    def _is_whole(self, file: SentenceFile) -> bool:
        return self.whole or (self.kind(file) == "messages" and file.endings[0] == ".json")

    @property
    def is_one(self) -> bool:
        """Whether there is one text, or one list of messages."""
        return len(self.files) == 1 and self._is_whole(self.files[0])

    def sentences(self, note: Callable[[str], object] = lambda _: None) -> Iterator[CorpusItem]:
        """Yield the sentences of all files, one file after the other, without empty ones, whose number is noted.

        A file that cannot be read has a failure in place of the first sentence that is missing. Where there are several
        files, the metadata of a sentence have the name of its file.

        Raises:
            InputError: there is no sentence, or the only file cannot be read at all.
            LoadError: a package that reads a file is not installed.
        """
        has_lines = all(self.kind(file) == "text" for file in self.files)
        items = (sentence for file in self.files for sentence in self._sentences_of(file))
        return without_empty(items, visible(without_password(self.location)), "line" if has_lines else "text", note)

    def last_number(self) -> int | None:
        """Return the number of the last line or row of the only file, if there is a quick way to know."""
        file = self.files[0]
        kind, is_remote = self.kind(file), len(self.files) > 1 or file.root
        with suppress(InputError):  # which is raised where it is read
            if kind == "Parquet" and not is_remote:
                return readers.count_rows(file)
            if not is_remote and not file.endings[1] and kind not in _DELIMITERS and os.path.isfile(file.path):
                with file.open() as stream:
                    return sum(1 for _ in readers.bounded_lines(stream))
        return None

    def _sentences_of(self, file: SentenceFile) -> Iterator[CorpusItem]:
        """Yield the sentences of a file, also the empty ones, and a failure where it cannot be read."""
        number = 0
        metadata: Metadata = {"file": file.name} if len(self.files) > 1 else NO_METADATA
        try:
            for number, text, *_ in self._read(file):
                failure = text._replace(metadata=metadata) if isinstance(text, Failure) else None
                yield CorpusItem(number, failure or text, metadata)
        except InputError as error:
            if number == 0 and not metadata:
                raise
            yield CorpusItem(number + 1, Failure(str(error), metadata=metadata), metadata)

    def _read(self, file: SentenceFile) -> Generator[CorpusItem, None, None]:
        """Yield the sentences of a file by its kind."""
        kind, name, column = self.kind(file), visible(file.name), self.column or "text"
        if kind == "Parquet":
            yield from readers.read_parquet(file, column, self.chat)
            return
        with file.open() as stream:
            if kind in _DELIMITERS:
                yield from readers.read_csv(stream, name, _DELIMITERS[kind], column)
            elif kind == "JSON Lines":
                yield from readers.read_jsonl(stream, name, column, self.chat, os.path.dirname(file.path))
            else:
                yield from readers.read_text(stream, name, self._is_whole(file), kind == "messages")


def without_empty(
    sentences: Iterable[CorpusItem], name: str, noun: str, note: Callable[[str], object]
) -> Iterator[CorpusItem]:
    """Yield the sentences that are not blank, and note the number of blank ones; InputError if all are."""
    empty, is_any = 0, False
    for sentence in sentences:
        if isinstance(sentence.text, str) and not sentence.text.strip():
            empty += 1
        else:
            is_any = True
            yield sentence
    if not is_any:
        raise InputError(f"{name} holds no sentence; expected one a {'line' if noun == 'line' else 'row'}")
    if empty:
        note(f"{name}: {plural(empty, f'empty {noun}')} {'was' if empty == 1 else 'were'} skipped")
