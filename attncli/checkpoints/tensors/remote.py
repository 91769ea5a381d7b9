"""The tensors of a checkpoint on the hub, of whose files only the parts that are read come to this machine.

A file that is here whole, in the hub's local cache, is read there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.checkpoints.folder import ALONE, repository_name, shards_of, split_snapshot
from attncli.checkpoints.hub import check_answers, explained, hush_hub, is_offline
from attncli.checkpoints.tensors import Stored
from attncli.checkpoints.tensors.cache import Notes, Version, trim
from attncli.checkpoints.tensors.header import MOST, PREFIX, Entry, header_end, read_header
from attncli.checkpoints.tensors.hub_reader import ChangedError, HubFile
from attncli.checkpoints.tensors.range_cache import Bytes, Ranges
from attncli.errors import LoadError, UnconfirmedError
from attncli.files import CODES, DTYPES
from attncli.text import bytes_shown, visible

if TYPE_CHECKING:
    from attncli.checkpoints.options import LoadOptions

_log = logging.getLogger(__name__)

MOST_UNASKED = 1_000_000_000  # bytes that are fetched without a yes
_HEAD = 1 << 16  # bytes that most headers fit into
NEAR = 1 << 16  # bytes between two rows, or two tensors, that cost less than a request
LARGEST = 1 << 25  # bytes that several are fetched in together; more at once would run one after the other
_TOGETHER = 8  # requests, as many as the hub's client makes
_OFTEN = 0.1  # seconds between two words on how far it is


class _Part(NamedTuple):
    """Bytes of a file."""

    file: str
    begin: int
    end: int


class Remote:
    """The tensors of a repository at a commit; see `attncli.checkpoints.tensors.Store`.

    Args:
        folder: the snapshot of the commit in the hub's local cache, or a folder in it, with its small files.
        options: how the checkpoint is loaded.

    Raises:
        LoadError: a file is damaged, cannot be fetched, or has changed.
        UnconfirmedError: more would be fetched than goes without asking.
        InputError: the cache cannot be written.
    """

    form = ""

    def __init__(self, folder: Path, options: LoadOptions) -> None:
        self._folder, start = split_snapshot(folder)
        self._options = options
        self._name = repository_name(self._folder)
        self._notes = Notes(self._folder)
        self._files: dict[str, _File] = {}
        self._fetched = 0
        self._lock = Lock()
        if (alone := start + ALONE) in self._notes.files:
            self._file_of = dict.fromkeys(self._file(alone).entries, alone)
        else:
            self._file_of = {name: start + file for name, file in shards_of(folder).items()}
        self.names = self._file_of.keys()

    def stored(self, name: str) -> Stored:
        """See `attncli.checkpoints.tensors.Store.stored`."""
        return Stored(*self._entry(name)[:2])

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """See `attncli.checkpoints.tensors.Store.read`."""
        entry = self._entry(name)
        return self._numbers(name, entry.begin, entry.end, entry.shape)

    def rows(self, name: str, indices: Sequence[int]) -> np.ndarray[Any, Any]:
        """See `attncli.checkpoints.tensors.Store.rows`."""
        entry = self._entry(name)
        width = (entry.end - entry.begin) // entry.shape[0]
        first = {index: entry.begin + index * width for index in sorted(set(indices))}
        self._bring([_Part(self._file_of[name], begin, begin + width) for begin in first.values()])
        shape = (1, *entry.shape[1:])
        rows = {index: self._numbers(name, begin, begin + width, shape) for index, begin in first.items()}
        return np.concatenate([rows[index] for index in indices])

    def prepare(self, names: Collection[str]) -> None:
        """See `attncli.checkpoints.tensors.Store.prepare`."""
        entries = {name: self._entry(name) for name in sorted(names) if name in self._file_of}
        self._bring([_Part(self._file_of[name], entry.begin, entry.end) for name, entry in entries.items()])

    def _entry(self, name: str) -> Entry:
        file = self._file_of[name]
        entries = self._file(file).entries
        if name not in entries:
            raise LoadError(
                f"the weights of {visible(self._name)} are damaged: {visible(file)} has no {visible(name)}, which the "
                "index says is in it"
            )
        return entries[name]

    def _numbers(self, name: str, begin: int, end: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        dtype = (DTYPES | CODES).get(kind := self.stored(name).type)
        if dtype is None:
            raise LoadError(f"tensor {visible(name)} of {visible(self._name)} is {kind}, which is not read")
        part = _Part(self._file_of[name], begin, end)
        while (found := self._file(part.file).find(begin, end)) is None:  # or removed by another run since
            self._bring([part])
        return found.view(dtype).reshape(shape)

    def _file(self, file: str) -> _File:
        with self._lock:
            if file not in self._files:
                self._files[file] = _File(self._name, self._folder, file, self._notes, self._options)
            return self._files[file]

    def _has(self, part: _Part) -> bool:
        return self._file(part.file).has(part.begin, part.end)

    def _bring(self, parts: Iterable[_Part]) -> None:
        """Fetch what is not here, several requests at once, and keep the cache within its limit."""
        missing = list(_joined(part for part in sorted(set(parts)) if not self._has(part)))
        if not missing:
            return
        total = sum(part.end - part.begin for part in missing)
        shown = f"{bytes_shown(total)} of the weights of {visible(self._name)}"
        if is_offline(self._options):
            raise LoadError(
                f"{shown} are not in the cache of tensors, and offline nothing is fetched; run it once online"
            )
        check_answers(self._name, "model", self._options)
        with self._lock:  # transformers reads in threads of its own
            if not self._options.yes and self._fetched + total > MOST_UNASKED:
                more = bytes_shown(self._fetched + total)
                raise UnconfirmedError(
                    f"{more} of the weights of {visible(self._name)} are fetched from the hub for this"
                )
            self._fetched += total
        _log.info("fetching %s", shown)
        progress = _Progress(visible(self._name), total)
        pool = ThreadPoolExecutor(_TOGETHER)
        try:
            for _ in pool.map(lambda part: self._file(part.file).fetch(part.begin, part.end, progress), missing):
                pass
        finally:
            progress.is_over = True
            pool.shutdown(cancel_futures=True)
        trim(self._options.most_cached, {path for file in self._files.values() for path in file.used})


class _File:
    """One of the files: here as a whole, or by parts of one version of it."""

    def __init__(self, name: str, folder: Path, file: str, notes: Notes, options: LoadOptions) -> None:
        self._name, self._named, self._notes, self._options = name, file, notes, options
        path = folder / file
        is_whole = os.path.isfile(path) and os.path.getsize(path) > 0
        self._whole = np.memmap(path, np.uint8, mode="r") if is_whole else None
        self._hub = HubFile(name, folder.name, file)
        known = None if self._whole is not None else notes.version(file)
        if self._whole is not None:
            known = Version("", len(self._whole))
        if known is None:
            known = self._asked()
            notes.keep_version(file, known)
        self._version = known
        self._is_checked = False
        self._lock = Lock()
        self._ranges = Ranges(notes.repository, known)

    @property
    def used(self) -> set[Path]:
        """The files of the cache that this run uses."""
        return self._ranges.used

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """What the file says of its tensors.

        Raises:
            LoadError: it is damaged.
        """
        size = self._version.size
        try:
            header = self._header(size)
            return read_header(header, size)
        except ValueError as error:
            self._notes.forget()  # it may be whole the next time
            why = visible(str(error))
            raise LoadError(
                f"the weights {visible(self._named)} of {visible(self._name)} cannot be read: {why}"
            ) from None

    def _header(self, size: int) -> bytes:
        if self._whole is not None:
            return self._whole[: header_end(self._whole[:PREFIX].tobytes(), size)].tobytes()
        if (found := self._ranges.header()) is not None:
            return found
        first = b"".join(self._chunks(0, min(size, _HEAD)))
        end = header_end(first, size)
        assert end <= PREFIX + MOST
        header = first[:end] + b"".join(self._chunks(len(first), end))
        read_header(header, size)  # before it is kept
        self._ranges.fill(0, end, lambda begin, _: iter([header[begin:]]))
        return header

    def has(self, begin: int, end: int) -> bool:
        """Return whether the bytes are here."""
        return self._whole is not None or self._ranges.has(begin, end)

    def find(self, begin: int, end: int) -> Bytes | None:
        """Return the bytes, mapped; None if they are not here."""
        return self._ranges.find(begin, end) if self._whole is None else np.asarray(self._whole[begin:end])

    def fetch(self, begin: int, end: int, progress: _Progress) -> None:
        """Bring bytes here."""

        def told(start: int, stop: int) -> Iterator[bytes]:
            progress.add(start - begin)  # which an interrupted run has left
            for some in self._chunks(start, stop):
                progress.add(len(some))
                yield some

        self._ranges.fill(begin, end, told)

    def _chunks(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield bytes from the hub, after a look whether they are still of the version that is known."""
        with explained(self._name, "model", self._options):
            try:
                with self._lock:
                    if not self._is_checked and self._asked() != self._version:
                        raise self._hub.changed()
                    self._is_checked = True
                yield from self._hub.chunks(begin, end)
            except ChangedError:
                self._notes.forget()
                raise

    def _asked(self) -> Version:
        if is_offline(self._options):
            raise LoadError(
                f"the header of {visible(self._named)} of {visible(self._name)} is not in the cache of tensors, and "
                "offline nothing is fetched; run it once online"
            )
        check_answers(self._name, "model", self._options)
        hush_hub()
        with explained(self._name, "model", self._options):
            return self._hub.version()


class _Progress:
    """Says how far a fetch is, now and then; ends it where another part of it has failed.

    Attributes:
        is_over: whether what is still to come is not wanted any more.
    """

    def __init__(self, name: str, total: int) -> None:
        self._name, self._total = name, total
        self._done, self._said = 0, -_OFTEN
        self._lock = Lock()
        self.is_over = False

    def add(self, count: int) -> None:
        """Say how far it is, if that was not said just before."""
        if self.is_over:
            raise LoadError(f"another part of {self._name} could not be fetched")
        with self._lock:
            self._done += count
            now = monotonic()
            if now - self._said < _OFTEN and self._done < self._total:
                return
            self._said = now
            parts = (bytes_shown(self._done), bytes_shown(self._total))
        _log.debug("fetching %s: %s of %s", self._name, *parts, extra={"share": self._done / self._total})


def _joined(parts: Iterable[_Part]) -> Iterator[_Part]:
    """Join parts, in their order, that stand near each other in a file: the experts of a layer are many tensors.

    What an interrupted run has left to fetch is joined as it was then.
    """
    last: _Part | None = None
    for part in parts:
        if last is not None and _is_near(last, part):
            last = last._replace(end=max(last.end, part.end))
            continue
        if last is not None:
            yield last
        last = part
    if last is not None:
        yield last


def _is_near(one: _Part, next_one: _Part) -> bool:
    is_near = one.file == next_one.file and next_one.begin - one.end <= NEAR
    return is_near and max(one.end, next_one.end) - one.begin <= LARGEST
