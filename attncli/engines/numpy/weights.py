"""The tensors of a model by the names of its spec, not cached, as reading one again costs little.

Within `held` they are cached, for repeated reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.checkpoints.config_reader import UnsupportedError
from attncli.errors import LoadError
from attncli.files import to_float32
from attncli.text import visible

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped

    from attncli.checkpoints.tensors import Store


class ModelWeights:
    """A checkpoint's tensors, by their names without a prefix.

    Attributes:
        prefix: the common beginning of the names.

    Args:
        model: the checkpoint's folder or name.
        store: the tensors.
        prefixes: the possible prefixes, which depend on how the checkpoint was saved.
        first: a tensor that every checkpoint of the family has, without the prefix.

    Raises:
        UnsupportedError: there are no such tensors.
    """

    def __init__(self, model: str, store: Store, prefixes: Sequence[str], first: str) -> None:
        self._model = model
        self._store = store
        self._held: dict[str, np.ndarray[Any, Any]] | None = None  # cache of `held`
        matching = [prefix for prefix in prefixes if prefix + first in store.names]
        if len(matching) != 1:
            raise UnsupportedError(f"its weights have no {first}" if store.names else "it has no safetensors weights")
        self.prefix = matching[0]

    def __len__(self) -> int:
        return len(self._store.names)

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self._store.names

    def unread(self, expected: Iterable[str]) -> set[str]:
        """Return the names, as in the checkpoint, of the tensors that are not expected."""
        return set(self._store.names) - {self.prefix + name for name in expected}

    def _expected(self, name: str, shape: tuple[int, ...]) -> str:
        """Return the name in the checkpoint of a tensor of a shape."""
        if name not in self:
            raise UnsupportedError(f"its weights have no {name} that it reads")
        return self._checked(self.prefix + name, shape)

    def _checked(self, name: str, shape: tuple[int, ...]) -> str:
        """Return the name of a tensor in the checkpoint, and check its shape and type."""
        stored = self._store.stored(name)
        if stored.type not in ("F32", "F16", "BF16"):
            raise UnsupportedError(f"its weights have no {visible(name)} that it reads")
        if stored.shape != shape:
            raise LoadError(
                f"the weights of {visible(self._model)} do not fit its config.json: {visible(name)} has shape "
                f"{list(stored.shape)}, the model expects {list(shape)}; check that the files belong together"
            )
        return name

    def vector(self, name: str, length: int) -> Float[np.ndarray, " E"]:
        """Return the weights of a norm, or a bias, in float32.

        Raises:
            UnsupportedError: there are none of that name, or of a type that is not read.
            LoadError: they have another shape.
        """
        return self._read(self._expected(name, (length,)), to_float32)

    def matrix(self, name: str, *shape: int) -> Shaped[np.ndarray, "F E"]:
        """Return a matrix as it is stored, in 16 or 32 bits; see `vector` and `ops.linear`."""
        return self._read(self._expected(name, shape))

    def head(
        self, names: Sequence[str], shape: tuple[int, int], indices: Sequence[int] | None = None
    ) -> Shaped[np.ndarray, "F E"]:
        """Return the matrix of the head on top of the model, or some of its rows, as it is stored.

        Args:
            names: its possible names, after any prefix and without `.weight`.
            shape: that it has.
            indices: of the rows; None is all of them.

        Raises:
            UnsupportedError: there is none.
            LoadError: it has another shape.
        """
        matching = [key for key in self._store.names if f".{key}".endswith(tuple(f".{name}.weight" for name in names))]
        if len(matching) != 1:
            raise UnsupportedError(f"its weights have no {names[0]}, which predicts the next token")
        name = self._checked(matching[0], shape)
        return self._read(name) if indices is None else self._store.rows(name, indices)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Cache in float32 the tensors that are read within the block: of a layer, or the head."""
        self._held = {}
        try:
            yield
        finally:
            self._held = None

    def _read(self, name: str, convert: Callable[[Any], np.ndarray[Any, Any]] = np.asarray) -> np.ndarray[Any, Any]:
        if self._held is None:
            return convert(self._store.read(name))
        if name not in self._held:
            self._held[name] = to_float32(self._store.read(name))
        return self._held[name]

    def prepare(self, names: Iterable[str]) -> None:
        """Fetch tensors that are about to be read; see `Store.prepare`."""
        self._store.prepare([self.prefix + name for name in names])

    def rows(self, name: str, indices: Sequence[int], *shape: int) -> Float[np.ndarray, "T E"]:
        """Return some rows of a table in float32, without reading the others; see `vector`."""
        if max(indices) >= shape[0]:
            raise UnsupportedError(f"{name} has {shape[0]} rows, and no row {max(indices)}")
        return to_float32(self._store.rows(self._expected(name, shape), indices))
