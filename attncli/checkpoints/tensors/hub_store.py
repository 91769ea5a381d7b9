"""The tensors of a checkpoint on the hub, of whose files only the byte ranges that are read come to this machine.

Ranges are read through huggingface_hub's file system, and are there as long as the process runs. A file that is small,
or of which most is read, is downloaded whole, into the local cache of huggingface_hub.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.checkpoints.checkpoint_folder import WEIGHTS
from attncli.checkpoints.hub import Download, is_offline, silence_hub, tell, translate_hub_errors
from attncli.checkpoints.tensors import Stored
from attncli.checkpoints.tensors.header import PREFIX, Entry, header_end, read_header
from attncli.errors import LoadError
from attncli.files import CODES, DTYPES
from attncli.text import bytes_shown, visible

if TYPE_CHECKING:
    from attncli.checkpoints.checkpoint_folder import CheckpointFolder
    from attncli.checkpoints.snapshot import RemoteFolder

_log = logging.getLogger(__name__)

WHOLE = 1 << 25  # bytes of a file that is downloaded whole, whatever is read of it
NEAR = 1 << 16  # bytes between two rows, or two tensors, that cost less than a request
LARGEST = 1 << 25  # bytes that several are fetched in together; more at once would run one after the other
_HEAD = 1 << 16  # bytes that most headers fit into
_TOGETHER = 8  # requests, as many as the hub's client makes
_WORTH_SAYING = 1_000_000  # bytes


class _Part(NamedTuple):
    """Bytes of a file."""

    file: str
    begin: int
    end: int


class HubStore:
    """The tensors of a repository at a commit; see `attncli.checkpoints.tensors.Store`.

    Args:
        name: of the checkpoint.
        files: its small files, in the local cache.
        remote: where on the hub it is.
        offline: whether the hub may not be asked.

    Raises:
        LoadError: a file is damaged, or cannot be fetched.
    """

    form = ""

    def __init__(self, name: str, files: CheckpointFolder, remote: RemoteFolder, offline: bool) -> None:
        self._name = visible(name)
        self._folder = files
        self._remote = remote
        self._is_offline = is_offline(offline)
        self._files: dict[str, _HubFile] = {}
        self._lock = RLock()  # transformers reads in threads of its own
        silence_hub()
        has_one = WEIGHTS in remote.sizes
        self._file_of = dict.fromkeys(self._file(WEIGHTS).entries, WEIGHTS) if has_one else files.shards()
        self.names: Collection[str] = self._file_of.keys()

    def stored(self, name: str) -> Stored:
        """See `attncli.checkpoints.tensors.Store.stored`."""
        return Stored(*self._entry(name)[:2])

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """See `attncli.checkpoints.tensors.Store.read`."""
        entry = self._entry(name)
        return self._numbers(name, entry.begin, entry.end).reshape(entry.shape)

    def rows(self, name: str, indices: Sequence[int]) -> np.ndarray[Any, Any]:
        """See `attncli.checkpoints.tensors.Store.rows`."""
        entry, file = self._entry(name), self._file_of[name]
        if self._has(_Part(file, entry.begin, entry.end)):
            return self.read(name)[list(indices)]
        width = (entry.end - entry.begin) // entry.shape[0]
        begins = [entry.begin + index * width for index in indices]
        self._fetch([_Part(file, begin, begin + width) for begin in begins])
        rows = [self._numbers(name, begin, begin + width).reshape(1, *entry.shape[1:]) for begin in begins]
        return np.concatenate(rows)

    def prepare(self, names: Collection[str]) -> None:
        """See `attncli.checkpoints.tensors.Store.prepare`."""
        entries = {name: self._entry(name) for name in sorted(names) if name in self._file_of}
        self._fetch(_Part(self._file_of[name], entry.begin, entry.end) for name, entry in entries.items())

    def _entry(self, name: str) -> Entry:
        file = self._file_of[name]
        entries = self._file(file).entries
        if name not in entries:
            raise LoadError(
                f"the weights of {self._name} are damaged: {visible(file)} has no {visible(name)}, which the index "
                "says is in it"
            )
        return entries[name]

    def _numbers(self, name: str, begin: int, end: int) -> np.ndarray[Any, Any]:
        dtype = (DTYPES | CODES).get(kind := self.stored(name).type)
        if dtype is None:
            raise LoadError(f"tensor {visible(name)} of {self._name} is {kind}, which is not read")
        file = self._file_of[name]
        self._fetch([_Part(file, begin, end)])
        return np.asarray(self._file(file).pages[begin:end]).view(dtype)

    def _file(self, file: str) -> _HubFile:
        with self._lock:
            if file not in self._files:
                if file not in self._folder and file not in self._remote.sizes:
                    raise LoadError(f"the weights of {self._name} are not complete: there is no {visible(file)}")
                self._files[file] = _HubFile(self, self._folder, file)
            return self._files[file]

    def _has(self, part: _Part) -> bool:
        return self._file(part.file).has(part)

    def _fetch(self, parts: Iterable[_Part]) -> None:
        """Bring parts to this machine that are not here, several requests at once."""
        with self._lock:
            missing = sorted({part for part in parts if part.begin < part.end and not self._has(part)})
            if not missing:
                return
            for file in {part.file for part in missing}:
                size = sum(part.end - part.begin for part in missing if part.file == file)
                if 2 * size > self._remote.sizes[file]:
                    self._file(file).download()
            missing = [part for part in missing if not self._has(part)]
            together = list(_joined(missing))
            total = sum(part.end - part.begin for part in together)
            self.check_online(total)
            progress = _Progress(self._name, total)
            with ThreadPoolExecutor(_TOGETHER) as pool:
                for _ in pool.map(lambda part: self._files[part.file].fetch(part, progress), together):
                    pass
            for part in missing:
                self._files[part.file].parts.add(part)

    def check_online(self, count: int) -> None:
        """Raise LoadError before bytes are fetched where nothing may be; say how many are, where it takes a while."""
        if self._is_offline:
            raise LoadError(
                f"the weights of {self._name} are not in the local cache, or not all of them, and offline nothing is "
                "fetched; `hf download` fetches them"
            )
        shown = f"fetching {bytes_shown(count)} of the weights of {self._name} from the hub"
        if count > _WORTH_SAYING:
            tell(shown)
        elif count:
            _log.info(shown)

    def get(self, part: _Part) -> bytes:
        """Return bytes of a file on the hub."""
        path = f"{self._repository}@{self._remote.commit}/{self._remote.inside}{part.file}"
        with translate_hub_errors(self._name, "model"):
            content: bytes = self._hub_files.cat_file(path, start=part.begin, end=part.end, cache_type="none")
        if len(content) != part.end - part.begin:
            raise LoadError(
                f"the server does not send the part of {visible(part.file)} of {self._name} that it was asked for; "
                "`hf download` downloads it whole"
            )
        return content

    def download(self, file: str) -> Path:
        """Download a whole file into the local cache, and return its path there."""
        from huggingface_hub import hf_hub_download

        self.check_online(self._remote.sizes[file])
        remote = self._remote
        with translate_hub_errors(self._name, "model"):
            return Path(
                hf_hub_download(remote.repository, remote.inside + file, revision=remote.commit, tqdm_class=Download)
            )

    @cached_property
    def _hub_files(self) -> Any:
        from huggingface_hub import HfFileSystem

        return HfFileSystem(skip_instance_cache=True)

    @cached_property
    def _repository(self) -> str:
        """The full name of the repository: the file system knows none of the old names, such as gpt2."""
        from huggingface_hub import HfApi

        name = self._remote.repository
        with translate_hub_errors(self._name, "model"):
            return name if "/" in name else HfApi().model_info(name, revision=self._remote.commit).id


class _HubFile:
    """One of the files: in the local cache as a whole, or by parts in a file without a name, at their places.

    Attributes:
        pages: its bytes.
        parts: those that are here.
    """

    def __init__(self, store: HubStore, folder: CheckpointFolder, file: str) -> None:
        self._store, self._name = store, file
        self.parts: set[_Part] = set()
        self.size = folder.sizes.get(file) or store._remote.sizes[file]
        self._is_whole = file in folder and folder.sizes[file] > 0
        if self._is_whole:
            self.pages = np.memmap(folder.path / file, np.uint8, "r")
        elif 0 < self.size <= WHOLE:
            self.download()
        elif self.size:
            with tempfile.TemporaryFile() as scratch:  # which its pages outlive
                os.truncate(scratch.fileno(), self.size)
                self.pages = np.memmap(scratch, np.uint8, "r+")

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """What the file says of its tensors.

        Raises:
            LoadError: it is damaged.
        """
        try:
            if not self.size:
                raise ValueError("it is empty")
            self._read_to(min(self.size, _HEAD))
            end = header_end(self.pages[:PREFIX].tobytes(), self.size)
            self._read_to(end)
            return read_header(self.pages[:end].tobytes(), self.size)
        except ValueError as error:
            raise LoadError(
                f"the weights {visible(self._name)} of {self._store._name} cannot be read: {visible(str(error))}"
            ) from None

    def _read_to(self, end: int) -> None:
        begin = max((part.end for part in self.parts), default=0)
        if not self._is_whole and begin < end:
            self._store.check_online(0)
            self.fetch(part := _Part(self._name, begin, end))
            self.parts.add(part)

    def has(self, part: _Part) -> bool:
        """Return whether a part is here."""
        return self._is_whole or part in self.parts

    def fetch(self, part: _Part, progress: _Progress | None = None) -> None:
        """Bring a part here."""
        self.pages[part.begin : part.end] = np.frombuffer(self._store.get(part), np.uint8)
        if progress is not None:
            progress.add(part.end - part.begin)

    def download(self) -> None:
        """Bring all of it here."""
        path = self._store.download(self._name)
        self.pages = np.memmap(path, np.uint8, "r")
        self._is_whole, self.size = True, len(self.pages)


class _Progress:
    """Says how far a fetch is."""

    def __init__(self, name: str, total: int) -> None:
        self._name, self._total, self._done = name, total, 0

    def add(self, count: int) -> None:
        """Say that some more bytes have come."""
        self._done += count
        shown = bytes_shown(self._done), bytes_shown(self._total)
        _log.debug("fetching %s: %s of %s", self._name, *shown, extra={"share": self._done / self._total})


def _joined(parts: Iterable[_Part]) -> Iterator[_Part]:
    """Join parts, in their order, that stand near each other in a file: the experts of a layer are many tensors."""
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
