"""The model in the box: it is opened by its name, everywhere, and its heads do what its card says."""

import json
import random
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from running import Ran

import attncli
from attncli.checkpoints.checkpoint_folder import demo_or

Run = Callable[..., Ran]
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


def vocabulary() -> dict[str, int]:
    return json.loads((FOLDER / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]


def best(texts: list[str], metric: str) -> float:
    return max(head.metrics[metric] for head in attncli.heads(texts, model="demo").heads)


def test_heads_attend_to_the_previous_token_and_to_what_followed_the_same_word_before() -> None:
    """Words at random, and the same ones once more: nothing but their order can tell which one follows."""
    assert best(UNSEEN, "previous") >= 0.6
    words = sorted(word for word in vocabulary() if word.isalpha() and len(word) > 2)
    rng = random.Random(0)
    assert best([" ".join(rng.sample(words, 40) * 2) for _ in range(5)], "induction") >= 0.5


@pytest.mark.parametrize("name", ["demo", "demo-vision"])
def test_a_wheel_holds_all_of_it_in_less_than_two_megabytes(name: str) -> None:
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert f"{name}/*" in settings["package-data"]["attncli.checkpoints"]
    files = list(Path(demo_or(name)).iterdir())
    assert files
    assert sum(file.stat().st_size for file in files) <= 2_000_000
