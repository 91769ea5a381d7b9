"""The model in the box that sees: its heaviest key; more is in tests/commands/test_pictured_lines.py."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from drawn_scenes import Scene
from PIL import Image
from running import Ran

Run = Callable[..., Ran]
MODEL = "demo-vision"


def test_its_heaviest_key_is_in_the_picture_that_is_shown(attn: Run, tmp_path: Path) -> None:
    rng, file = np.random.default_rng(123), tmp_path / "shapes.png"
    drawn = next(one for one in iter(lambda: Scene.drawn(rng), None) if len(one.kinds) == 8)
    Image.fromarray(drawn.picture()).save(file)
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
