"""Tensors of a checkpoint on the hub: only the byte ranges that are read are downloaded.

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
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.checkpoints.checkpoint_folder import WEIGHTS, map_weights
from attncli.checkpoints.hub import Download, silence_hub, translate_hub_errors
from attncli.checkpoints.tensors import Array, Store, Stored
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
    file: str
    begin: int
    end: int


class HubStore(Store):
    """The tensors of a repository at a commit."""

    def __init__(self, name: str, files: CheckpointFolder, remote: Repository) -> None:
        silence_hub()
        self._name, self._files, self._remote = visible(name), files, remote
        self._tensors: dict[str, Tensors] = {}  # of the open files; those that are not fetched are zeros
        self._scratch: dict[str, np.memmap[Any, Any]] = {}  # of the files that are not here as a whole
        self._fetched: set[_Range] = set()
        self._lock = RLock()  # transformers reads in threads of its own
        is_one = WEIGHTS in remote.sizes
        self._file_of = dict.fromkeys(self._opened(WEIGHTS).types, WEIGHTS) if is_one else files.shards()
        self.names = self._file_of.keys()

    def stored(self, name: str) -> Stored:
        """See `Store.stored`."""
        tensors = self._opened(self._file_of[name])
        if name not in tensors.types:
            damage = f"{visible(self._file_of[name])} has no {visible(name)}, although the index lists it"
            raise LoadError(f"the weights of {self._name} are damaged: {damage}")
        return Stored(tensors.types[name], tensors.shapes[name])

    def prepare(self, names: Collection[str]) -> None:
        """See `Store.prepare`."""
        self._fetch(self._located(name)[0] for name in names if name in self._file_of)

    def read(self, name: str) -> Array:
        """See `Store.read`."""
        self._fetch([self._located(name)[0]])
        return self._located(name)[1]

    def rows(self, name: str, indices: Sequence[int]) -> Array:
        """See `Store.rows`."""
        whole, table = self._located(name)
        if whole not in self._fetched:
            begins = [whole.begin + index * table[0].nbytes for index in indices]
            self._fetch(_Range(whole.file, begin, begin + table[0].nbytes) for begin in begins)
        return self._located(name)[1][list(indices)]

    def _located(self, name: str) -> tuple[_Range, Array]:
        """Return the range of a tensor, and the tensor, whose bytes may not be fetched yet."""
        stored, file = self.stored(name), self._file_of[name]
        tensors = self._tensors[file]
        if name not in tensors.mapped:
            raise LoadError(f"tensor {visible(name)} of {self._name} is {stored.type}, which attn cannot read")
        begin, array = tensors.starts[name], tensors.mapped[name]
        return _Range(file, begin, begin + array.nbytes), array

    def _opened(self, file: str) -> Tensors:
        with self._lock:
            if file not in self._tensors:
                if file not in self._files and file not in self._remote.sizes:
                    raise LoadError(f"the weights of {self._name} are incomplete: there is no {visible(file)}")
                if file in self._files or self._remote.sizes[file] <= WHOLE:
                    self._open_whole(file)
                else:
                    self._open_scratch(file)
            return self._tensors[file]

    def _open_whole(self, file: str) -> None:
        """Open a file of the local cache, downloaded where it is not there."""
        path = self._files.path / file
        if file not in self._files:
            from huggingface_hub import hf_hub_download

            self._announce(self._remote.sizes[file])
            revision = self._remote.root.name
            with translate_hub_errors(self._name, "model"):
                path = Path(hf_hub_download(self._remote.name, file, revision=revision, tqdm_class=Download))
        self._tensors[file] = map_weights(path, f"{visible(file)} of {self._name}")
        self._scratch.pop(file, None)

    def _open_scratch(self, file: str) -> None:
        """Make a file with the header alone, whose pages stay after its name is removed."""
        self._announce(0)
        size = self._remote.sizes[file]
        descriptor, path = tempfile.mkstemp(suffix=".safetensors")
        os.close(descriptor)
        try:
            os.truncate(path, size)
            pages = self._scratch[file] = np.memmap(path, np.uint8, "r+")
            end = min(size, _HEAD)
            pages[:end] = self._get(_Range(file, 0, end))
            length = 8 + int.from_bytes(pages[:8].tobytes(), "little")
            if end < length <= min(size, _LONGEST_HEAD):
                pages[end:length] = self._get(_Range(file, end, length))
            self._tensors[file] = map_weights(Path(path), f"{visible(file)} of {self._name}")
        finally:
            with suppress(OSError):  # a system may keep what is mapped
                os.unlink(path)

    def _fetch(self, parts: Iterable[_Range]) -> None:
        """Download missing ranges, several requests at once."""
        with self._lock:
            missing = sorted({part for part in parts if part.begin < part.end} - self._fetched)
            for file in {part.file for part in missing} & self._scratch.keys():
                if 2 * sum(part.end - part.begin for part in missing if part.file == file) > self._remote.sizes[file]:
                    self._open_whole(file)
            missing = [part for part in missing if part.file in self._scratch]
            requests = _joined(missing)
            total, done = sum(part.end - part.begin for part in requests), 0
            if not missing:
                return
            self._announce(total)
            with ThreadPoolExecutor(_TOGETHER) as pool:
                for part, content in zip(requests, pool.map(self._get, requests), strict=True):
                    self._scratch[part.file][part.begin : part.end] = content
                    done += len(content)
                    shown = bytes_shown(done), bytes_shown(total)
                    _log.debug("fetching %s: %s of %s", self._name, *shown, extra={"share": done / total})
            self._fetched |= {*missing}

    def _announce(self, count: int) -> None:
        """Raise LoadError if bytes have to be fetched offline; print their number where it takes a while."""
        if self._remote.is_offline:
            advice = "run `hf download` first, or drop --offline"
            raise LoadError(f"the weights of {self._name} are not all in the local cache; {advice}")
        if count > _WORTH_SAYING:
            print_note(f"fetching {bytes_shown(count)} of the weights of {self._name} from the hub")

    def _get(self, part: _Range) -> Array:
        with translate_hub_errors(self._name, "model"):
            file_system, folder = self._hub_files
            content = file_system.cat_file(folder + part.file, start=part.begin, end=part.end, cache_type="none")
        if len(content) != part.end - part.begin:
            unread = f"{visible(part.file)} of {self._name}"
            raise LoadError(f"the server does not send ranges of {unread}; run `hf download` first")
        return np.frombuffer(content, np.uint8)

    @cached_property
    def _hub_files(self) -> tuple[Any, str]:
        """The hub's file system, and the path of the commit in it."""
        from huggingface_hub import HfApi, HfFileSystem

        name, revision = self._remote.name, self._remote.root.name
        if "/" not in name:  # the file system has none of the old names, such as gpt2
            name = HfApi().model_info(name, revision=revision).id
        return HfFileSystem(skip_instance_cache=True), f"{name}@{revision}/"


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
