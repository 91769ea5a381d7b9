"""The toy layer's random numbers: NumPy's, which need no torch, or torch's, as published notebooks draw them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.errors import require

if TYPE_CHECKING:
    from jaxtyping import Float

    from attncli.trace.tokens import Token


class Linear(NamedTuple):
    """x·weight + bias."""

    weight: Float[np.ndarray, "E D"]
    bias: Float[np.ndarray, " D"] | None = None

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.weight.size + (0 if self.bias is None else self.bias.size)

    def apply(self, x: Float[np.ndarray, "T E"]) -> Float[np.ndarray, "T D"]:
        """Return the projection of every row, which does not depend on the other rows, not even in its last bit."""
        # A product in float32 is rounded otherwise when it has another number of rows.
        projected = x.astype(np.float64) @ self.weight
        return (projected if self.bias is None else projected + self.bias).astype(np.float32)


class _NumpyDraws:
    """Float32 arrays of NumPy's default generator."""

    def __init__(self, seed: int) -> None:
        self._seed, self._generator = seed, np.random.default_rng(seed)

    def normal(self, rows: int, columns: int) -> Float[np.ndarray, "R C"]:
        return self._generator.standard_normal((rows, columns), dtype=np.float32)

    def uniform(self, rows: int, columns: int) -> Float[np.ndarray, "R C"]:
        return self._generator.random((rows, columns), dtype=np.float32)

    def embedding(self, tokens: Sequence[Token], size: int, width: int) -> Float[np.ndarray, "T E"]:
        """Draw each by the seed and the word alone, not by the other words."""

        def draw(text: str) -> Float[np.ndarray, " E"]:
            digest = int.from_bytes(sha256(text.encode()).digest(), "big")
            return np.random.default_rng([self._seed, digest]).standard_normal(width, dtype=np.float32)

        drawn = {text: draw(text) for text in dict.fromkeys(token.text for token in tokens)}
        return np.stack([drawn[token.text] for token in tokens])

    def default_linear(self, fan_in: int, fan_out: int) -> Linear:
        """Draw weight and bias as nn.Linear does by default, U(-1/√fan_in, 1/√fan_in)."""
        bound = np.float32(1 / math.sqrt(fan_in))
        weight = (2 * self.uniform(fan_out, fan_in) - 1) * bound  # drawn as nn.Linear stores it
        return Linear(weight.T, (2 * self.uniform(1, fan_out)[0] - 1) * bound)


class _TorchDraws:
    """The same of torch's generator on the CPU, seeded like that of a notebook, whose own it leaves alone."""

    def __init__(self, seed: int) -> None:
        require("--rng torch", "torch")
        import torch

        self._torch, self._generator = torch, torch.Generator().manual_seed(seed)
        # Whatever default dtype and device the process has set.
        self._options: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}

    def normal(self, rows: int, columns: int) -> Float[np.ndarray, "R C"]:
        return self._torch.randn(rows, columns, generator=self._generator, **self._options).numpy()

    def uniform(self, rows: int, columns: int) -> Float[np.ndarray, "R C"]:
        return self._torch.rand(rows, columns, generator=self._generator, **self._options).numpy()

    def embedding(self, tokens: Sequence[Token], size: int, width: int) -> Float[np.ndarray, "T E"]:
        """Draw the whole table as nn.Embedding does, a row for each id."""
        table = self._torch.empty(size, width, **self._options).normal_(generator=self._generator)
        return table.numpy()[[token.id for token in tokens]]

    def default_linear(self, fan_in: int, fan_out: int) -> Linear:
        weight, bias = (self._torch.empty(*shape, **self._options) for shape in ((fan_out, fan_in), (fan_out,)))
        self._torch.nn.init.kaiming_uniform_(weight, math.sqrt(5), generator=self._generator)
        bound = 1 / math.sqrt(fan_in)
        return Linear(weight.numpy().T, bias.uniform_(-bound, bound, generator=self._generator).numpy())


Draws = _NumpyDraws | _TorchDraws
RNGS: dict[str, Callable[[int], Draws]] = {"numpy": _NumpyDraws, "torch": _TorchDraws}

# How a matrix of `rows` inputs and `columns` outputs is drawn in a layer of the given width.
INITS: dict[str, Callable[[Draws, int, int, int], Linear]] = {
    "scaled": lambda draws, rows, columns, width: Linear(draws.normal(rows, columns) / np.float32(math.sqrt(width))),
    "normal": lambda draws, rows, columns, _: Linear(draws.normal(rows, columns)),
    "uniform": lambda draws, rows, columns, _: Linear(draws.uniform(rows, columns)),
    "linear": lambda draws, rows, columns, _: draws.default_linear(rows, columns),
    "zeros": lambda _, rows, columns, __: Linear(np.zeros((rows, columns), np.float32)),
}
