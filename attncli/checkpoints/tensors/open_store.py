"""Opens the store of a checkpoint's tensors that fits the form and the place of its weights.

Safetensors files are mapped. The pages of a table are released after each use: a long stream does not hold all of it.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from attncli.checkpoints.checkpoint_folder import (
    PICKLE,
    PICKLE_INDEX,
    WEIGHTS,
    WEIGHTS_INDEX,
    CheckpointFolder,
    map_weights,
)
from attncli.checkpoints.tensors import Array, Store, Stored, quantization_of
from attncli.errors import LoadError
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.checkpoints.snapshot import Snapshot


class Shards(Store):
    """The tensors of a folder; LoadError if a file is damaged."""

    def __init__(self, files: CheckpointFolder) -> None:
        self._map = cache(lambda file: map_weights(files.path / file))
        self._files = dict.fromkeys(self._map(WEIGHTS).types, WEIGHTS) if WEIGHTS in files else files.shards()
        self.names = self._files.keys()
        self._read: set[str] = set()  # files of tensors that were read since the last release

    def stored(self, name: str) -> Stored:
        """See `Store.stored`."""
        file = self._map(self._files[name])
        return Stored(file.types[name], file.shapes[name])

    def read(self, name: str) -> Array:
        """See `Store.read`."""
        self._read.add(self._files[name])
        return self._map(self._files[name]).mapped[name]

    def release(self) -> None:
        """See `Store.release`; the pages stay in the system's cache."""
        for file in self._read if hasattr(mmap, "MADV_DONTNEED") else ():  # not on Windows
            self._map(file).pages.madvise(mmap.MADV_DONTNEED)
        self._read.clear()

    def rows(self, name: str, indices: Sequence[int]) -> Array:
        """See `Store.rows`."""
        table = self.read(name)
        rows = table[list(indices)]
        if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
            file = self._map(self._files[name])
            first = file.starts[name] // mmap.PAGESIZE * mmap.PAGESIZE
            file.pages.madvise(mmap.MADV_DONTNEED, first, file.starts[name] + table.nbytes - first)
        return rows


def open_store(snapshot: Snapshot) -> Store:
    """Open the tensors of a checkpoint without reading them; LoadError if they are damaged or cannot be read."""
    store = _as_stored(snapshot)
    if (config := quantization_of(snapshot.config)) is not None:
        from attncli.checkpoints.tensors.quantization import dequantized

        store = dequantized(store, snapshot, config)
    if snapshot.adapter is None:
        return store
    from attncli.checkpoints.tensors.lora_store import with_adapter

    return with_adapter(store, snapshot.name, snapshot.adapter)


def _as_stored(snapshot: Snapshot) -> Store:
    remote, files = snapshot.remote, snapshot.files
    if remote is not None and not remote.sizes.keys().isdisjoint((WEIGHTS, WEIGHTS_INDEX)):
        from attncli.checkpoints.tensors.hub_store import HubStore

        return HubStore(snapshot.model_name, files, remote)
    if not snapshot.is_pickled:
        if WEIGHTS not in files and WEIGHTS_INDEX not in files:
            raise LoadError(
                f"{visible(snapshot.model_name)} has a config.json but no weights{files.summary}: expected {WEIGHTS}, "
                f"or {WEIGHTS_INDEX} and its files; copy them there"
            )
        return Shards(files)
    names = {PICKLE} if PICKLE in (remote or files).sizes else set(files.shards(PICKLE_INDEX).values())
    if remote is not None:
        remote.fetch(names, "model")
    from attncli.checkpoints.tensors.pickles import Pickles

    return Pickles(files.path / name for name in sorted(names))


def is_plain(snapshot: Snapshot, store: Store) -> bool:
    """Return whether the weights are plain files on this machine, which any library can read."""
    is_here = snapshot.remote is None or snapshot.is_pickled
    return is_here and snapshot.adapter is None and not store.form
