"""The tensors of a folder's safetensors files, which are mapped: only what is used is read.

The pages of a table are released after each use, so that a long stream does not end up holding all of it.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from functools import cache

from attncli.checkpoints.checkpoint_folder import WEIGHTS, CheckpointFolder, map_weights
from attncli.checkpoints.tensors import Array, Store, Stored


class Shards(Store):
    """The tensors of a folder; LoadError if a file is damaged."""

    def __init__(self, files: CheckpointFolder) -> None:
        self._map = cache(lambda file: map_weights(files.path / file))
        self._files = dict.fromkeys(self._map(WEIGHTS).types, WEIGHTS) if WEIGHTS in files else files.shards()
        self.names = self._files.keys()

    def stored(self, name: str) -> Stored:
        """See `Store.stored`."""
        file = self._map(self._files[name])
        return Stored(file.types[name], file.shapes[name])

    def read(self, name: str) -> Array:
        """See `Store.read`."""
        return self._map(self._files[name]).mapped[name]

    def rows(self, name: str, indices: Sequence[int]) -> Array:
        """See `Store.rows`."""
        table = self.read(name)
        rows = table[list(indices)]
        if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
            file = self._map(self._files[name])
            first = file.starts[name] // mmap.PAGESIZE * mmap.PAGESIZE
            file.pages.madvise(mmap.MADV_DONTNEED, first, file.starts[name] + table.nbytes - first)
        return rows
