"""The tensors in .bin files, by torch's restricted unpickler, which runs no code of a file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from zipfile import is_zipfile

import torch

from attncli.checkpoints.tensors import Array, Store, Stored
from attncli.errors import LoadError
from attncli.files import to_numpy
from attncli.text import visible


class Pickles(Store):
    """The tensors of some files, read on demand; LoadError if one holds anything but tensors, or is damaged."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._tensors: dict[str, torch.Tensor] = {}
        for path in paths:
            try:
                # A file saved before 2020 is no archive, and cannot be mapped.
                loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
                self._tensors |= {str(name): tensor for name, tensor in loaded.items()}
                for name in self._tensors:
                    self.stored(name)  # sparse ones and the like have no type in NumPy
            except MemoryError:
                raise
            except Exception:  # torch and pickle raise nearly everything
                why = "holds more than tensors, or is damaged; none of it was run"
                raise LoadError(f"the pickle {visible(str(path))} {why}") from None
        self.names = self._tensors.keys()

    def stored(self, name: str) -> Stored:
        """See `Store.stored`."""
        tensor = self._tensors[name]
        kind = to_numpy(tensor.new_empty(0)).dtype
        return Stored(f"{kind.kind.upper()}{8 * kind.itemsize}", tuple(tensor.shape))

    def read(self, name: str) -> Array:
        """See `Store.read`."""
        return to_numpy(self._tensors[name])
