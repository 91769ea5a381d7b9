"""The pictures that the model that sees is trained on, drawn anew for tests."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2] / "demo"))
try:
    from scenes import CELL, GRID, Scene
finally:
    del sys.path[0]

__all__ = ["CELL", "Scene", "box_of", "save_scene"]


def box_of(cell: int) -> list[int]:
    """The pixels of a cell: left, top, right, bottom."""
    row, column = divmod(cell, GRID)
    return [CELL * column, CELL * row, CELL * (column + 1), CELL * (row + 1)]


def save_scene(rng: np.random.Generator, file: Path) -> Any:
    scene = Scene.drawn(rng)
    Image.fromarray(scene.picture()).save(file)
    return scene
