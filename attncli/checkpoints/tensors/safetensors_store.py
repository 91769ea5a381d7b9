"""The tensors of a folder's safetensors files, which are mapped: only what is used is read.

The pages of a table are let go after each use, so that a long stream does not end up holding all of it.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from attncli.checkpoints.checkpoint_folder import WEIGHTS, CheckpointFolder, map_weights
from attncli.checkpoints.tensors import Stored
from attncli.files import Tensors


class Shards:
    """The tensors of a folder; see `attncli.checkpoints.tensors.Store`.

    Raises:
        LoadError: a file is damaged.
    """

    form = ""

    def __init__(self, files: CheckpointFolder) -> None:
        self._folder = files.path
        self._mapped: dict[str, Tensors] = {}
        has_one = WEIGHTS in files
        self._files = dict.fromkeys(self._file(WEIGHTS).types, WEIGHTS) if has_one else files.shards()
        self.names = self._files.keys()

    def _file(self, file: str) -> Tensors:
        """Map the tensors of a file, without reading any."""
        if file not in self._mapped:
            self._mapped[file] = map_weights(self._folder / file)
        return self._mapped[file]

    def stored(self, name: str) -> Stored:
        """See `attncli.checkpoints.tensors.Store.stored`."""
        file = self._file(self._files[name])
        return Stored(file.types[name], file.shapes[name])

    def prepare(self, names: Collection[str]) -> None:
        """See `attncli.checkpoints.tensors.Store.prepare`; it is all here."""

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """See `attncli.checkpoints.tensors.Store.read`."""
        return self._file(self._files[name]).mapped[name]

    def rows(self, name: str, indices: Sequence[int]) -> np.ndarray[Any, Any]:
        """See `attncli.checkpoints.tensors.Store.rows`."""
        table = self.read(name)
        rows = table[list(indices)]
        if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
            file = self._file(self._files[name])
            first = file.starts[name] // mmap.PAGESIZE * mmap.PAGESIZE
            file.pages.madvise(mmap.MADV_DONTNEED, first, file.starts[name] + table.nbytes - first)
        return rows
