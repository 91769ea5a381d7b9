"""The models in the box are opened by their names, everywhere, and their heads do what their cards say."""

import json
import random
import tomllib
from pathlib import Path

import numpy as np
import pytest
from drawn_scenes import Scene
from PIL import Image
from running import Run

import attncli
from attncli.checkpoints.checkpoint_folder import demo_or

PROJECT = Path(__file__).parents[2]
FOLDER = Path(demo_or("demo"))
UNSEEN = [
    "The old man put the letter on the table and the key under the table.",
    "If you want a quiet life, do not keep a parrot next to a piano.",
]


def test_its_name_means_the_model_in_the_box_and_not_a_folder_of_that_name(attn: Run, folder: Path) -> None:
    (folder / "demo").mkdir()
    assert attn("tokens", "-m", "demo", "a cat").code == 0
    refused = attn("tokens", "-m", "./demo", "a cat")
    assert refused.code == 3
    assert "./demo has no tokenizer" in refused.err
    trained = attn("inspect", "a cat", "--vocab", "demo", "-F", "json").json
    assert [token["text"] for token in trained["query_tokens"]] == ["<s>", "a", "cat"]


def best(texts: list[str], metric: str) -> float:
    return max(head.metrics[metric] for head in attncli.heads(texts, model="demo").heads)


def test_heads_attend_to_the_previous_token_and_to_what_followed_the_same_word_before() -> None:
    """Words at random, and the same ones once more: nothing but their order can tell which one follows."""
    assert best(UNSEEN, "previous") >= 0.6
    vocabulary = json.loads((FOLDER / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    words = sorted(word for word in vocabulary if word.isalpha() and len(word) > 2)
    rng = random.Random(0)
    assert best([" ".join(rng.sample(words, 40) * 2) for _ in range(5)], "induction") >= 0.5


@pytest.mark.parametrize("name", ["demo", "demo-vision"])
def test_a_wheel_holds_all_of_it_in_less_than_two_megabytes(name: str) -> None:
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert f"{name}/*" in settings["package-data"]["attncli.checkpoints"]
    files = list(Path(demo_or(name)).iterdir())
    assert files
    assert sum(file.stat().st_size for file in files) <= 2_000_000


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
