"""A checkpoint's tensors: mapped, so that only what is used is read, and widened to float32 where it is used.

From the second use, by the second sentence of a stream, a tensor stays widened: at most the size of the model in
float32. The pages of a table are let go after each use, so that a long stream does not end up holding all of it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors import LoadError
from attncli.files import Tensors, widened
from attncli.sources.folder import ALONE, map_weights, shards_of
from attncli.sources.native.fields import DeclinedError
from attncli.text import visible

if TYPE_CHECKING:
    from jaxtyping import Float


class Weights:
    """The tensors of a folder's safetensors files, by their names, with or without a prefix.

    Args:
        folder: that holds them.
        prefix: what names begin with if the checkpoint was saved with a head on top.
        first: a tensor that every checkpoint of the family has, without the prefix.

    Raises:
        DeclinedError: there are no such files.
        LoadError: they are damaged.
    """

    def __init__(self, folder: Path, prefix: str, first: str) -> None:
        self._folder = folder
        self._mapped: dict[str, Tensors] = {}
        self._used: set[str] = set()
        self._kept: dict[str, Float[np.ndarray, " ..."]] = {}
        self._files = self._listed()
        found = [each for each in ("", prefix) if each + first in self._files]
        if len(found) != 1:
            raise DeclinedError(f"its weights have no {first}")
        self._prefix = found[0]

    def _listed(self) -> dict[str, str]:
        """Return the file that each tensor is in."""
        if (self._folder / ALONE).is_file():
            return dict.fromkeys(self._file(ALONE).starts, ALONE)
        if not (listed := shards_of(self._folder)):
            raise DeclinedError("it has no safetensors weights")
        return listed

    def _file(self, file: str) -> Tensors:
        """Map the tensors of a file, without reading any."""
        if file not in self._mapped:
            self._mapped[file] = map_weights(self._folder / file)
        return self._mapped[file]

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._files

    def unread(self, expected: Iterable[str]) -> set[str]:
        """Return the names, as in the files, of the tensors that are not expected."""
        return self._files.keys() - {self._prefix + name for name in expected}

    def _find(self, name: str) -> np.ndarray[Any, Any]:
        file = self._file(self._files[self._prefix + name]) if name in self else None
        if file is None or file.types.get(self._prefix + name) not in ("F32", "F16", "BF16"):
            raise DeclinedError(f"its weights have no {name} that it reads")
        return file.mapped[self._prefix + name]

    def _expected(self, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        found = self._find(name)
        if found.shape != shape:
            raise LoadError(
                f"the weights of {visible(str(self._folder))} do not fit its config.json: {visible(name)} has shape "
                f"{list(found.shape)}, the model expects {list(shape)}; check that the files belong together"
            )
        return found

    def tensor(self, name: str, *shape: int) -> Float[np.ndarray, " ..."]:
        """Return a tensor in float32.

        Raises:
            DeclinedError: there is none of that name, or of a type that is not read.
            LoadError: it has another shape.
        """
        wide = widened(self._kept[name] if name in self._kept else self._expected(name, shape))
        if name in self._used:
            self._kept[name] = wide
        self._used.add(name)
        return wide

    def elements(self, start: str) -> int:
        """Return how many numbers are in the matrices whose names begin with a text."""
        # Buffers, such as the masks in old files of GPT-2, have other names.
        names = [name for name in self._files if name.startswith(self._prefix + start) and name.endswith(".weight")]
        tensors = (self._find(name.removeprefix(self._prefix)) for name in names)
        return sum(tensor.size for tensor in tensors if tensor.ndim == 2)

    def rows(self, name: str, indices: Sequence[int], *shape: int) -> Float[np.ndarray, "T E"]:
        """Return some rows of a table in float32, without reading the others; see `tensor`."""
        if max(indices) >= shape[0]:
            raise DeclinedError(f"{name} has {shape[0]} rows, and no row {max(indices)}")
        table = self._expected(name, shape)
        rows = widened(table[list(indices)])
        if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
            file = self._file(self._files[self._prefix + name])
            start = file.starts[self._prefix + name]
            first = start // mmap.PAGESIZE * mmap.PAGESIZE
            file.pages.madvise(mmap.MADV_DONTNEED, first, start + table.nbytes - first)
        return rows


def has_weights(folder: Path) -> bool:
    """Return whether a folder has safetensors weights, with all their files."""
    return os.path.isfile(folder / ALONE) or all(
        os.path.isfile(folder / file) for file in set(shards_of(folder).values()) or [ALONE]
    )
