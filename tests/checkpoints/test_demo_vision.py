"""The model in the box that sees: a head looks at the cell that a question is about, and the answer needs it."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_scenes import Scene, box_of
from PIL import Image
from running import Ran

import attncli
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


def test_a_head_finds_the_cell_of_every_question(scene: tuple[Any, Path]) -> None:
    drawn, file = scene
    pairs = []
    for index, cell in enumerate(drawn.cells):
        question, _ = drawn.question(index)
        row, column = divmod(cell, 6)
        box = box_of(cell)
        named = {0: [f"@r{row}c{column}"], 1: [f"@{box[0] + 8},{box[1] + 8}"]}
        pairs.append({"text": question, "query": question.split()[-1], "keys": named.get(index, [box])})
    best = attncli.heads(model=MODEL, pairs=pairs, image=str(file)).heads[0]
    assert best.layer == 1
    assert best.hits >= 0.9
    assert best.hits_uniform < 0.05


def test_the_answer_needs_the_head_that_looks_and_no_other_of_its_layer(scene: tuple[Any, Path]) -> None:
    drawn, file = scene
    question, place = drawn.question(0)
    cuts = attncli.ablate(question, MODEL, image=str(file), layer=1, each=True)
    assert cuts.next is not None
    assert cuts.next.text == place
    lost = [np.exp(head.after) < 0.5 for head in cuts.heads]
    best = attncli.heads(
        model=MODEL, image=str(file), pairs=[{"text": question, "query": -1, "keys": [drawn.cells[0] + 1]}]
    ).heads[0]
    assert lost == [head.head == best.head for head in cuts.heads]


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
