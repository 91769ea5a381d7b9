"""Going on with an interrupted run: what its side file holds, and a stream that continues it.

The last sentence with a whole line there is computed again, in the batch that it was in, and has to come out as it
stands. So the file ends as that of a run with the same options that was never interrupted; other options are noticed
where they change that sentence, and one sentence says so. Those before it that have no line are read again too: they
are bad, which is said and counts.
"""

from __future__ import annotations

import os
import re
import sys
from array import array
from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

from attncli.corpus.work import Answer, Batch, Result
from attncli.errors import InputError, UsageError
from attncli.text import visible

# How the lines of a sentence begin; its number is in the first group.
_LINES = {
    "jsonl": re.compile(rb'\{"schema": "attncli\.(?:trace|error)/1", "sentence": ([0-9]{1,18})[,}]'),
    "tsv": re.compile(rb"([0-9]{1,18})\t"),
    "csv": re.compile(rb"([0-9]{1,18}),"),
}
_HEADER = re.compile(rb"sentence[\t,]")
_ERROR = b'{"schema": "attncli.error/1"'
_BLOCK = 2**20  # bytes that are read at a time; a line may be longer


def resumable(path: Path | None) -> Path:
    """Return the file that `--resume` goes on with.

    Raises:
        UsageError: there is none, or it is none that grows by whole lines.
    """
    if path is None:
        raise UsageError("--resume goes on with a file; say which with --output FILE.jsonl, .tsv or .csv")
    if path.suffix.lower().removeprefix(".") not in _LINES:
        raise UsageError(
            f"--resume does not apply to {visible(str(path))}: expected a file ending in .jsonl, .tsv or .csv; no "
            "other grows by lines"
        )
    return path


def is_whole(path: Path) -> bool:
    """Return whether a run has written the file to its end, and no later one was interrupted."""
    try:
        left = _part_of(path).stat().st_size
    except OSError:  # nothing is left, or another run has just ended it
        left = 0
    return path.is_file() and not left


def bad_of(path: Path, chosen: str, numbers: Iterable[int]) -> int:
    """Return how many sentences a whole file says were bad: those that have an error for a line there, or none.

    Args:
        path: the file.
        chosen: its format.
        numbers: of all sentences, ascending.
    """
    found = ((_LINES[chosen].match(opening), opening) for _, _, opening in _whole_lines(path))
    answered = (int(match[1]) for match, opening in found if match and not opening.startswith(_ERROR))
    last, bad = 0, 0
    for number in numbers:
        while last < number:
            last = next(answered, sys.maxsize)
        bad += last != number
    return bad


@contextmanager
def resumed(path: Path, chosen: str) -> Iterator[Resumed]:
    """Hold the side file of a run, and give what is in it; the file appears when the block succeeds.

    Args:
        path: the file that is to be.
        chosen: its format.

    Raises:
        InputError: another run is writing it or has just ended it, what stands there is none of ours, or it cannot be
            written.
    """
    from attncli.files import atomic_write

    with atomic_write(path, ".part", goes_on=True) as aside:
        if is_whole(path):
            raise InputError(f"{visible(str(path))} has just been ended by another run")
        # Read only now that nobody else writes it.
        yield Resumed(aside, _part_of(path), chosen)


def _part_of(path: Path) -> Path:
    """Return where `files.atomic_write` lets a stream grow: beside what a link points to."""
    final = Path(os.path.realpath(path)) if path.is_symlink() else path
    return final.with_name(final.name + ".part")


class Resumed:
    """What an interrupted run left, and the stream that goes on from there.

    Args:
        aside: the file to write.
        part: the side file that an interrupted run leaves.
        chosen: its format.

    Attributes:
        part: the side file.
        sentence: the number of the last sentence with a whole line, which is computed again; 1 where there is none.
        failures: how many of those before it have an error for a line.
    """

    def __init__(self, aside: Path, part: Path, chosen: str) -> None:
        self._aside = aside
        self.part = part
        self.sentence = 1
        self.failures = 0
        self._with_lines = array("Q")  # the numbers of those before it that have lines, ascending
        self._stands: list[tuple[int, int]] = []  # what has to come out again, from byte to byte
        if self.part.is_file():
            self._read(chosen)

    @property
    def goes_on(self) -> bool:
        """Whether there is something to go on from."""
        return bool(self._stands)

    def is_due(self, number: int) -> bool:
        """Return whether a sentence is still to be answered: it comes later, or has no line."""
        place = bisect_left(self._with_lines, number)
        has_line = place < len(self._with_lines) and self._with_lines[place] == number
        return number >= self.sentence or not has_line

    def left(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches that have sentences which are due; all of the one that it goes on in."""
        for batch in batches:
            if batch.sentences[-1].number < self.sentence:
                batch = batch._replace(sentences=[one for one in batch.sentences if self.is_due(one.number)])
            if batch.sentences:
                yield batch

    def due(self, answers: Generator[Answer[Result], None, None]) -> Generator[Answer[Result], None, None]:
        """Pass on the answers to the sentences that are due."""
        with closing(answers):
            yield from (answer for answer in answers if self.is_due(answer.number))

    @contextmanager
    def stream(self) -> Iterator[ContinuedFile]:
        """Give the stream that takes what is computed for the sentences that are due.

        Raises:
            InputError: what is computed is not what stands in the side file.
        """
        with open(self._aside, "r+b" if self.goes_on else "wb") as file:
            stream = ContinuedFile(file, visible(str(self.part)), self.sentence, self._stands)
            yield stream
            stream.end()

    def _read(self, chosen: str) -> None:
        """Find the last sentence that has a whole line."""
        is_error, last, start, stop = False, 0, 0, 0
        header = (0, 0)
        for start_of_line, stop_of_line, opening in _whole_lines(self.part):
            match = _LINES[chosen].match(opening)
            if match is None and start_of_line == 0 and chosen != "jsonl" and _HEADER.match(opening):
                header = (0, stop_of_line)
                continue
            if match is None or int(match[1]) < max(last, 1):
                raise InputError(
                    f"{visible(str(self.part))} is not what a run with --resume leaves (at byte {start_of_line}); "
                    "remove it to start afresh"
                )
            if int(match[1]) != last:
                if last:
                    self._with_lines.append(last)
                self.failures += is_error
                last, start = int(match[1]), start_of_line
            is_error = opening.startswith(_ERROR)
            stop = stop_of_line
        if last:
            self.sentence = last
            self._stands = [header, (start, stop)]


class ContinuedFile:
    """A file that is written on, once what stands at its end has come out again."""

    def __init__(self, file: IO[bytes], name: str, sentence: int, stands: list[tuple[int, int]]) -> None:
        self._file = file
        self._name = name
        self._sentence = sentence
        self._stands = [span for span in stands if span[0] < span[1]]

    def write(self, text: str) -> None:
        """Compare what stands there already, and write the rest.

        Raises:
            InputError: it differs.
        """
        data = text.encode("utf-8")
        while data and self._stands:
            start, stop = self._stands[0]
            self._file.seek(start)
            there = self._file.read(min(len(data), stop - start))
            if not there or not data.startswith(there):
                raise self._refusal()
            data = data[len(there) :]
            self._stands[0] = (start + len(there), stop)
            if start + len(there) == stop:
                self._stands.pop(0)
                if not self._stands:
                    self._file.truncate()  # half a line
        self._file.write(data)

    def flush(self) -> None:
        """Hand everything to the system."""
        self._file.flush()

    def end(self) -> None:
        """Make sure that nothing was missing.

        Raises:
            InputError: something was.
        """
        if self._stands:
            raise self._refusal()

    def _refusal(self) -> InputError:
        return InputError(
            f"sentence {self._sentence} does not come out as it stands in {self._name}, which other input, options, "
            "versions or numbers of threads have made; give those, or remove it to start afresh"
        )


def _whole_lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield where each line that is whole begins and ends, and how it begins."""
    start = stop = 0
    opening = b""
    with open(path, "rb") as file:
        while block := file.readline(_BLOCK):
            if start == stop:
                opening = block[:100]
            stop += len(block)
            if block.endswith(b"\n"):
                yield start, stop, opening
                start = stop
