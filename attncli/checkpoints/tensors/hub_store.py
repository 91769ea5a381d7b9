"""The tensors of a checkpoint on the hub: only the byte ranges that are read are downloaded.

Ranges are read through huggingface_hub's file system into a scratch file of the same size, at the same offsets,
which lasts as long as the process. A file that is small, or mostly read, is downloaded whole, into the local cache of
huggingface_hub.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.checkpoints.checkpoint_folder import WEIGHTS, map_weights
from attncli.checkpoints.hub import Download, silence_hub, translate_hub_errors
from attncli.checkpoints.tensors import Store, Stored
from attncli.errors import LoadError
from attncli.text import bytes_shown, print_note, visible

if TYPE_CHECKING:
    from attncli.checkpoints.checkpoint_folder import CheckpointFolder
    from attncli.checkpoints.hub import Repository
    from attncli.files import Tensors

_log = logging.getLogger(__name__)

WHOLE = 1 << 25  # bytes of a file that is always downloaded whole
NEAR = 1 << 16  # bytes between two rows, or two tensors, that cost less than a request
LARGEST = 1 << 25  # bytes of one request; larger ones would run one after the other
_HEAD = 1 << 16  # bytes that most headers fit into
_LONGEST_HEAD = 100_000_000  # limit of safetensors
_TOGETHER = 8  # requests, as many as the hub's client makes
_WORTH_SAYING = 1_000_000  # bytes


class _Range(NamedTuple):
    """Bytes of a file."""

    file: str
    begin: int
    end: int


@dataclass
class _File:
    """A file of weights: in the local cache as a whole, or by ranges in a scratch file."""

    tensors: Tensors  # of the file, mapped; those that are not fetched are zeros
    pages: np.memmap[Any, Any] | None = None  # of a scratch file; None: all of it is here
    ranges: set[_Range] = field(default_factory=set)  # those that are here


class HubStore(Store):
    """The tensors of a repository at a commit.

    Args:
        name: of the checkpoint.
        files: those in the local cache.
        remote: its repository on the hub.

    Raises:
        LoadError: a file is damaged, or cannot be fetched.
    """

    def __init__(self, name: str, files: CheckpointFolder, remote: Repository) -> None:
        silence_hub()
        self._name, self._files, self._remote = visible(name), files, remote
        self._open: dict[str, _File] = {}
        self._lock = RLock()  # transformers reads in threads of its own
        has_one = WEIGHTS in remote.sizes
        self._file_of = dict.fromkeys(self._file(WEIGHTS).tensors.types, WEIGHTS) if has_one else files.shards()
        self.names = self._file_of.keys()

    def stored(self, name: str) -> Stored:
        """See `Store.stored`."""
        tensors = self._tensors(name)
        return Stored(tensors.types[name], tensors.shapes[name])

    def prepare(self, names: Collection[str]) -> None:
        """See `Store.prepare`."""
        self._fetch(self._range(name) for name in names if name in self._file_of)

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """See `Store.read`."""
        self._fetch([self._range(name)])
        return self._mapped(name)

    def rows(self, name: str, indices: Sequence[int]) -> np.ndarray[Any, Any]:
        """See `Store.rows`."""
        tensor_range, table = self._range(name), self._mapped(name)
        if not self._has(tensor_range):
            begins = [tensor_range.begin + index * table[0].nbytes for index in indices]
            self._fetch(_Range(tensor_range.file, begin, begin + table[0].nbytes) for begin in begins)
        return table[list(indices)]

    # --- positions of tensors ----------------------------------------------------------------------------------------

    def _mapped(self, name: str) -> np.ndarray[Any, Any]:
        """Return a tensor, whose bytes may not be fetched yet."""
        tensors = self._tensors(name)
        if name not in tensors.mapped:
            raise LoadError(f"tensor {visible(name)} of {self._name} is {tensors.types[name]}, which attn cannot read")
        return tensors.mapped[name]

    def _range(self, name: str) -> _Range:
        start = self._tensors(name).starts[name]
        return _Range(self._file_of[name], start, start + self._mapped(name).nbytes)

    def _tensors(self, name: str) -> Tensors:
        tensors = self._file(file := self._file_of[name]).tensors
        if name not in tensors.types:
            raise LoadError(
                f"the weights of {self._name} are damaged: {visible(file)} has no {visible(name)}, although the "
                "index lists it"
            )
        return tensors

    def _has(self, part: _Range) -> bool:
        file = self._file(part.file)
        return file.pages is None or part in file.ranges

    # --- files -------------------------------------------------------------------------------------------------------

    def _file(self, name: str) -> _File:
        with self._lock:
            if name not in self._open:
                is_whole = self._files.sizes.get(name) or self._size(name) <= WHOLE
                self._open[name] = self._whole(name) if is_whole else self._scratch(name)
            return self._open[name]

    def _size(self, file: str) -> int:
        if file not in self._remote.sizes:
            raise LoadError(f"the weights of {self._name} are incomplete: there is no {visible(file)}")
        return self._remote.sizes[file]

    def _whole(self, file: str) -> _File:
        """Return a file of the local cache, downloaded where it is not there."""
        path, remote = self._files.path / file, self._remote
        if not self._files.sizes.get(file):
            from huggingface_hub import hf_hub_download

            self._check_online(remote.sizes[file])
            with translate_hub_errors(self._name, "model"):
                path = Path(hf_hub_download(remote.name, file, revision=remote.root.name, tqdm_class=Download))
        return _File(self._map(file, path))

    def _scratch(self, file: str) -> _File:
        """Make a file with the header alone, whose pages stay after its name is removed."""
        self._check_online(0)
        size = self._size(file)
        descriptor, path = tempfile.mkstemp(suffix=".safetensors")
        os.close(descriptor)
        try:
            os.truncate(path, size)
            pages = np.memmap(path, np.uint8, "r+")
            end = min(size, _HEAD)
            pages[:end] = self._get(_Range(file, 0, end))
            length = 8 + int.from_bytes(pages[:8].tobytes(), "little")
            if end < length <= min(size, _LONGEST_HEAD):
                pages[end:length] = self._get(_Range(file, end, length))
            return _File(self._map(file, Path(path)), pages)
        finally:
            with suppress(OSError):  # a system may keep what is mapped
                os.unlink(path)

    def _map(self, file: str, path: Path) -> Tensors:
        try:
            return map_weights(path)
        except LoadError as error:  # which names a file that is gone
            why = str(error).partition("cannot be read: ")[2]
            raise LoadError(f"the weights {visible(file)} of {self._name} cannot be read: {why}") from None

    # --- ranges ------------------------------------------------------------------------------------------------------

    def _fetch(self, parts: Iterable[_Range]) -> None:
        """Download missing ranges, several requests at once."""
        with self._lock:
            missing = sorted({part for part in parts if part.begin < part.end and not self._has(part)})
            for file in {part.file for part in missing}:
                if 2 * sum(part.end - part.begin for part in missing if part.file == file) > self._size(file):
                    self._open[file] = self._whole(file)
            missing = [part for part in missing if not self._has(part)]
            if not missing:
                return
            together = _joined(missing)
            total, done = sum(part.end - part.begin for part in together), 0
            self._check_online(total)
            with ThreadPoolExecutor(_TOGETHER) as pool:
                for part, content in zip(together, pool.map(self._get, together), strict=True):
                    pages = self._open[part.file].pages
                    assert pages is not None
                    pages[part.begin : part.end] = content
                    done += len(content)
                    shown = bytes_shown(done), bytes_shown(total)
                    _log.debug("fetching %s: %s of %s", self._name, *shown, extra={"share": done / total})
            for part in missing:
                self._open[part.file].ranges.add(part)

    def _check_online(self, count: int) -> None:
        """Raise LoadError if bytes have to be fetched offline; log their number where it takes a while."""
        if self._remote.is_offline:
            raise LoadError(
                f"the weights of {self._name} are not all in the local cache; run `hf download` first, or drop "
                "--offline"
            )
        if count > _WORTH_SAYING:
            print_note(f"fetching {bytes_shown(count)} of the weights of {self._name} from the hub")

    def _get(self, part: _Range) -> np.ndarray[Any, Any]:
        """Return bytes of a file on the hub."""
        path = f"{self._repository}@{self._remote.root.name}/{part.file}"
        with translate_hub_errors(self._name, "model"):
            content: bytes = self._file_system.cat_file(path, start=part.begin, end=part.end, cache_type="none")
        if len(content) != part.end - part.begin:
            raise LoadError(
                f"the server does not send ranges of {visible(part.file)} of {self._name}; run `hf download` first"
            )
        return np.frombuffer(content, np.uint8)

    @cached_property
    def _file_system(self) -> Any:
        from huggingface_hub import HfFileSystem

        return HfFileSystem(skip_instance_cache=True)

    @cached_property
    def _repository(self) -> str:
        """Full name of the repository: the file system has none of the old names, such as gpt2."""
        from huggingface_hub import HfApi

        name = self._remote.name
        with translate_hub_errors(self._name, "model"):
            return name if "/" in name else HfApi().model_info(name, revision=self._remote.root.name).id


def _joined(parts: Iterable[_Range]) -> list[_Range]:
    """Join ranges, in their order, that are close in a file: the experts of a layer are many tensors."""
    joined: list[_Range] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last and last.file == part.file and part.begin - last.end <= NEAR and part.end - last.begin <= LARGEST:
            joined[-1] = last._replace(end=max(last.end, part.end))
        else:
            joined.append(part)
    return joined
