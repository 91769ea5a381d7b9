"""Pictures of coloured shapes on a grid, and questions about them, which the model that sees is trained on."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

SHAPES = ("circle", "square", "triangle", "cross")
COLORS = {"red": (224, 49, 49), "green": (47, 158, 68), "blue": (51, 105, 231), "yellow": (250, 204, 21)}
BACKGROUND = (32, 33, 36)
GRID = 6  # rows, and columns
CELL = 16  # pixels of a cell's side
KINDS = tuple(product(COLORS, SHAPES))
PLACES = tuple(f"{column}{row + 1}" for row in range(GRID) for column in "abcdef")  # as on a chessboard, from the top

_STEPS = (np.arange(CELL) - (CELL - 1) / 2) / (CELL / 2)  # of a cell's pixels, from its middle, -1 to 1
_DOWN, _ACROSS = np.meshgrid(_STEPS, _STEPS, indexing="ij")
_INSIDE = {
    "circle": np.hypot(_DOWN, _ACROSS) < 0.75,
    "square": np.maximum(abs(_DOWN), abs(_ACROSS)) < 0.65,
    "triangle": (_DOWN < 0.7) & (abs(_ACROSS) * 1.9 < _DOWN + 0.8),
    "cross": (np.minimum(abs(_DOWN), abs(_ACROSS)) < 0.25) & (np.maximum(abs(_DOWN), abs(_ACROSS)) < 0.8),
}


@dataclass(frozen=True)
class Scene:
    """Some shapes, each in a cell of its own, no two alike."""

    kinds: tuple[tuple[str, str], ...]  # color and shape
    cells: tuple[int, ...]  # row · GRID + column

    @classmethod
    def drawn(cls, rng: np.random.Generator, most: int = 8) -> Scene:
        """Return a scene of 2 to `most` shapes."""
        count = int(rng.integers(1, most + 1))
        kinds = tuple(KINDS[index] for index in rng.permutation(len(KINDS))[:count])
        return cls(kinds, tuple(rng.permutation(GRID * GRID)[:count].tolist()))

    def picture(self) -> np.ndarray:
        """Return its pixels, uint8 [height, width, 3]."""
        pixels = np.full((GRID * CELL, GRID * CELL, 3), BACKGROUND, np.uint8)
        for (color, shape), cell in zip(self.kinds, self.cells, strict=True):
            row, column = divmod(cell, GRID)
            part = pixels[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL]
            part[_INSIDE[shape]] = COLORS[color]
        return pixels

    def question(self, index: int) -> tuple[str, str]:
        """Return a question about one of the shapes, and its answer."""
        color, shape = self.kinds[index]
        return f"where is the {color} {shape}", PLACES[self.cells[index]]
