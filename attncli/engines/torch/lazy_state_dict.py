"""A store's tensors as transformers takes them: each is read when its turn comes, and only if the model has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from attncli.checkpoints.tensors import Store


def state_of(store: Store) -> dict[str, Any]:
    """Return the tensors of a store by their names, as `from_pretrained` takes them for `state_dict`."""
    return {name: _Unread(store, name) for name in store.names}


def names_of(store: Store, read: list[str]) -> dict[str, Any]:
    """Return the same for a model on the meta device: nothing is read, but the names that it asks for are listed."""
    return {name: _Named(store, name, read) for name in store.names}


class _Unread:
    """A tensor that is read where it is sliced, as those that safetensors hands to transformers."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self._store.stored(self._name).shape)

    def get_shape(self) -> list[int]:
        return list(self.shape)

    def get_dtype(self) -> str:
        return self._store.stored(self._name).type

    def __getitem__(self, index: Any) -> torch.Tensor:
        array = self._store.read(self._name)
        tensor = torch.from_numpy(array.copy())  # what is mapped cannot be written to
        return (tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor)[index]


class _Named(_Unread):
    """A tensor without its numbers, which tells that it was asked for."""

    def __init__(self, store: Store, name: str, read: list[str]) -> None:
        super().__init__(store, name)
        self._read = read

    def __getitem__(self, index: Any) -> torch.Tensor:
        self._read.append(self._name)
        return torch.empty(self.shape, device="meta")[index]
