"""The model in the box: it is opened by its name, everywhere, and its heads do what its card says."""

import json
import random
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from running import Ran

import attncli
from attncli.checkpoints.checkpoint_folder import demo_or

Run = Callable[..., Ran]
PROJECT = Path(__file__).parents[2]
FOLDER = Path(demo_or("demo"))
UNSEEN = (
    "The old man put the letter on the table and the key under the table.",
    "If you want a quiet life, do not keep a parrot next to a piano.",
)


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


def test_it_is_trained_anew_with_the_vocabulary_that_it_has() -> None:
    pieces = (PROJECT / "demo" / "vocabulary.txt").read_text(encoding="utf-8").splitlines()
    assert {piece: id_ for id_, piece in enumerate(pieces)} == vocabulary()


def best(survey: Any, metric: str) -> float:
    return max(head.metrics[metric] for head in survey.heads)


def test_a_head_attends_to_the_previous_token_of_sentences_that_it_never_saw() -> None:
    assert best(attncli.heads(UNSEEN, model="demo"), "previous") >= 0.6


def test_a_head_finds_what_followed_the_same_word_before() -> None:
    """Words at random, and the same ones once more: nothing but their order can tell which one follows."""
    words = sorted(word for word in vocabulary() if word.isalpha() and len(word) > 2)
    rng = random.Random(0)
    texts = [" ".join(rng.sample(words, 40) * 2) for _ in range(5)]
    assert best(attncli.heads(texts, model="demo"), "induction") >= 0.5


def test_a_wheel_holds_all_of_it_in_less_than_two_megabytes() -> None:
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    pattern, _ = settings["package-data"]["attncli.checkpoints"]
    packed = set(FOLDER.parent.glob(pattern))
    assert packed == set(FOLDER.rglob("*"))
    assert sum(file.stat().st_size for file in packed) <= 2_000_000
