"""The tensors in .bin files, by torch's restricted unpickler, which runs no code of a file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import torch

from attncli.checkpoints.tensors import Stored
from attncli.errors import LoadError
from attncli.files import to_numpy
from attncli.text import visible


def _unpickled(path: Path) -> dict[str, torch.Tensor]:
    try:
        # What was saved before 2020 is no archive, and cannot be mapped.
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
        for tensor in found.values():
            to_numpy(tensor.new_empty(0))  # sparse ones and the like have none
        return {str(name): tensor for name, tensor in found.items()}
    except MemoryError:
        raise
    except Exception:  # torch and pickle raise nearly everything
        raise LoadError(
            f"the pickle {visible(str(path))} holds more than tensors or is damaged; nothing in it was run"
        ) from None


class Pickles:
    """The tensors of some files, which are read where they are used; see `attncli.checkpoints.tensors.Store`.

    Raises:
        LoadError: a file holds anything but tensors, or is damaged.
    """

    form = ""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._tensors: dict[str, torch.Tensor] = {}
        for path in paths:
            self._tensors |= _unpickled(path)
        self.names: Collection[str] = self._tensors.keys()

    def stored(self, name: str) -> Stored:
        """See `attncli.checkpoints.tensors.Store.stored`."""
        tensor = self._tensors[name]
        kind = to_numpy(tensor.new_empty(0)).dtype
        return Stored(f"{kind.kind.upper()}{8 * kind.itemsize}", tuple(tensor.shape))

    def prepare(self, names: Collection[str]) -> None:
        """See `attncli.checkpoints.tensors.Store.prepare`; it is all here."""

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """See `attncli.checkpoints.tensors.Store.read`."""
        return to_numpy(self._tensors[name])

    def rows(self, name: str, indices: Sequence[int]) -> np.ndarray[Any, Any]:
        """See `attncli.checkpoints.tensors.Store.rows`."""
        return to_numpy(self._tensors[name][list(indices)])
