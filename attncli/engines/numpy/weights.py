"""The tensors of a model by the names of its spec: nothing of them is kept, for reading one again costs little.

Where one is read very often, `held` keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.checkpoints.config_reader import UnsupportedError
from attncli.checkpoints.weight_checks import wrong_shape
from attncli.files import to_float32
from attncli.text import visible

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped

    from attncli.checkpoints.tensors import Store


class ModelWeights:
    """A model's tensors in a store, by their names without a prefix; UnsupportedError if there are none.

    They have one where the checkpoint was saved with a head on top, as the tensor `first` shows.
    """

    def __init__(self, model: str, store: Store, prefix: str, first: str) -> None:
        self._model = model
        self._store = store
        self._held: dict[str, np.ndarray[Any, Any]] | None = None
        prefixes = [stored_name for stored_name in ("", prefix) if stored_name + first in store.names]
        if len(prefixes) != 1:
            raise UnsupportedError(f"its weights have no {first}" if store.names else "it has no safetensors weights")
        self.prefix = prefixes[0]

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self._store.names

    def unread(self, expected: Iterable[str]) -> set[str]:
        """Return the names, as in the checkpoint, of the tensors that are not expected."""
        return set(self._store.names) - {self.prefix + name for name in expected}

    def prepare(self, names: Iterable[str]) -> None:
        """Get tensors that are about to be read; see `Store.prepare`."""
        self._store.prepare([self.prefix + name for name in names])

    def vector(self, name: str, length: int) -> Float[np.ndarray, " E"]:
        """Return a norm's weights or a bias in float32; UnsupportedError without, LoadError of another shape."""
        return to_float32(self.read(self.prefix + name, (length,)))

    def matrix(self, name: str, *shape: int) -> Shaped[np.ndarray, "F E"]:
        """Return a matrix as it is stored, in 16 or 32 bits; see `vector` and `ops.linear`."""
        return self.read(self.prefix + name, shape)

    def rows(self, name: str, indices: Sequence[int], *shape: int) -> Float[np.ndarray, "T E"]:
        """Return some rows of a table in float32, without reading the others; see `vector`."""
        if max(indices) >= shape[0]:
            raise UnsupportedError(f"{name} has {shape[0]} rows, and no row {max(indices)}")
        self._check(self.prefix + name, shape)
        return to_float32(self._store.rows(self.prefix + name, indices))

    def head(self, names: Sequence[str]) -> str:
        """Return the stored name of the head on top of the model, by its possible names; UnsupportedError without."""
        endings = tuple(f".{name}.weight" for name in names)
        matching = [stored_name for stored_name in self._store.names if f".{stored_name}".endswith(endings)]
        if len(matching) != 1:
            raise UnsupportedError(f"its weights have no {names[0]}, which predicts the next token")
        return matching[0]

    def bits(self, name: str) -> int:
        """Return the bits of a number of a tensor that hold its digits; see `Store.bits`."""
        return self._store.bits(self.prefix + name)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold in float32 what is read within, which is read again and again: the tensors of a layer."""
        self._held = {}
        try:
            yield
        finally:
            self._held = None

    def release(self) -> None:
        """Release the memory of what was read; see `Store.release`."""
        self._store.release()

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Return a tensor by its name in the checkpoint; see `vector`."""
        self._check(name, shape)
        if self._held is None:
            return np.asarray(self._store.read(name))
        if name not in self._held:
            self._held[name] = to_float32(self._store.read(name))
        return self._held[name]

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        stored = self._store.stored(name) if name in self._store.names else None
        if stored is None or stored.type not in ("F32", "F16", "BF16"):
            raise UnsupportedError(f"its weights have no {visible(name)} that it reads")
        if stored.shape != shape:
            raise wrong_shape(self._model, name, stored.shape, shape)
