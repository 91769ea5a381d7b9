"""The model in the box that sees: its heaviest key, and its size; more is in tests/commands/test_pictured_lines.py."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_scenes import Scene
from PIL import Image
from running import Ran

from attncli.checkpoints.checkpoint_folder import demo_or

Run = Callable[..., Ran]
PROJECT = Path(__file__).parents[2]
MODEL = "demo-vision"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A picture that it never saw, of eight shapes."""
    rng = np.random.default_rng(123)
    drawn = next(one for one in iter(lambda: Scene.drawn(rng), None) if len(one.kinds) == 8)
    file = tmp_path_factory.mktemp("scene") / "shapes.png"
    Image.fromarray(drawn.picture()).save(file)
    return drawn, file


def test_its_heaviest_key_is_in_the_picture_that_is_shown(attn: Run, scene: tuple[Any, Path]) -> None:
    drawn, file = scene
    question, _ = drawn.question(0)
    options = ("-m", MODEL, "--image", file, "--layer", "1", "--query", question.split()[-1])
    document = attn("inspect", question, *options, "-F", "json").json
    assert document["grids"] == [{**document["grids"][0], "start": 1, "rows": 6, "columns": 6, "box": [0, 0, 96, 96]}]
    rows = [head["weights"][0] for head in document["layers"][0]["heads"]]
    assert drawn.cells[0] + 1 in [int(np.argmax(row)) for row in rows]
    screen = attn("inspect", question, *options, "--width", "80")
    assert "a cell is where a token came from" in screen.out
    narrow = attn("inspect", question, *options, "--width", "40")
    assert "came from: the vision tower has mixed all cells before" in " ".join(narrow.out.split())
    assert screen.err == ""
    of_first = attn("inspect", question, "-m", MODEL, "--image", file, "--width", "80")
    assert "layer 0 of 2; --layer all looks in every layer" in of_first.err


def test_a_wheel_holds_it_in_less_than_two_megabytes() -> None:
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert f"{MODEL}/*" in settings["package-data"]["attncli.checkpoints"]
    files = list(Path(demo_or(MODEL)).iterdir())
    assert json.loads(Path(demo_or(MODEL), "config.json").read_text())["model_type"] == "llava"
    assert sum(file.stat().st_size for file in files) < 2_000_000
