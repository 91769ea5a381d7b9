"""A store whose tensors are stored as codes and scales: what they stand for is computed where it is read.

The numbers of a tensor are those of the definition of its form, in float32. What a form does to the hidden states on
top (activations in eight bits) is no part of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.checkpoints.tensors import Store, Stored
from attncli.checkpoints.tensors.quantization_recipes import RECIPES, QuantizedTensor, QuantizedTensors
from attncli.checkpoints.weight_checks import unknown_quantization
from attncli.errors import LoadError
from attncli.text import visible
from attncli.trace.tokens import brief

if TYPE_CHECKING:
    from attncli.checkpoints.snapshot import Snapshot

# What the fields that are read hold, of whichever method; those that are lists or tables are looked at where they are.
_TYPES = dict.fromkeys(("bits", "w_bit", "group_size"), int) | dict.fromkeys(
    ("version", "checkpoint_format", "format"), str
)
_LARGEST = 2**31


class Dequantized:
    """The tensors of a store, those that are quantized by the numbers that they stand for.

    See `attncli.checkpoints.tensors.Store`.

    Args:
        store: with the codes and the scales.
        method: that made them.
        quantized: the tensors that are quantized, by the names that they have in the model.
    """

    def __init__(self, store: Store, method: str, quantized: Mapping[str, QuantizedTensor]) -> None:
        self._store = store
        self._quantized = quantized
        self.form = f"{method}, dequantized"
        parts = {part for each in quantized.values() for part in each.parts}
        self.names = dict.fromkeys([*(name for name in store.names if name not in parts), *quantized]).keys()

    def stored(self, name: str) -> Stored:
        """See `attncli.checkpoints.tensors.Store.stored`."""
        quantized = self._quantized.get(name)
        return self._store.stored(name) if quantized is None else Stored("F32", quantized.shape)

    def prepare(self, names: Collection[str]) -> None:
        """See `attncli.checkpoints.tensors.Store.prepare`."""
        parts = (self._quantized[name].parts if name in self._quantized else (name,) for name in names)
        self._store.prepare([part for each in parts for part in each])

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """See `attncli.checkpoints.tensors.Store.read`."""
        quantized = self._quantized.get(name)
        return self._store.read(name) if quantized is None else quantized.read()

    def rows(self, name: str, indices: Sequence[int]) -> np.ndarray[Any, Any]:
        """See `attncli.checkpoints.tensors.Store.rows`."""
        quantized = self._quantized.get(name)
        return self._store.rows(name, indices) if quantized is None else quantized.read()[list(indices)]


def dequantized(store: Store, snapshot: Snapshot, config: Any) -> Store:
    """Return a store of the numbers that the tensors of a checkpoint stand for, by what its files say.

    Args:
        store: of its tensors as they are stored.
        snapshot: the checkpoint.
        config: what its config.json says of the quantization.

    Raises:
        LoadError: they are quantized in a way that is not known, or are not what their form says.
    """
    folder = str(snapshot.folder)
    method = config.get("quant_method") if isinstance(config, Mapping) else None
    if not isinstance(method, str) or method not in RECIPES:
        raise unknown_quantization(folder, "MLX" if method is None and "quantization" in snapshot.config else method)
    if snapshot.is_pickled:
        raise LoadError(
            f"the weights of {visible(folder)} are quantized, and such weights are read from safetensors alone; save "
            "them as safetensors"
        )
    tensors = QuantizedTensors(store, folder)
    for field, kind in _TYPES.items():
        value = config.get(field)
        is_fit = value is None or type(value) is kind
        if not is_fit or (isinstance(value, int) and abs(value) >= _LARGEST):
            raise tensors.unread(f"{field} {brief(repr(value))}")
    quantized = RECIPES[method](tensors, config)
    return Dequantized(store, method, quantized) if quantized else store
