"""Long texts: some rows, the heaviest keys, maps that keep the largest weight, and one screen by default."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import on_terminal, text_shown

import attncli

Run = Callable[..., Any]
SENTENCE = "time flies like an arrow fruit flies like a banana"


# --- rows --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["2:5", ":-8", "8:700"])
def test_rows_are_what_a_slice_of_the_matrix_is(attn: Run, value: str) -> None:
    every = attn("inspect", SENTENCE, "-F", "json").json["layers"][0]["heads"]
    some = attn("inspect", SENTENCE, "-F", "json", "--query", value).json
    chosen = slice(*(int(end) if end else None for end in value.split(":")))
    assert [token["index"] for token in some["query_tokens"]] == list(range(10))[chosen]
    for head, whole in zip(some["layers"][0]["heads"], every, strict=True):
        assert head["mask"] == whole["mask"][chosen]
        for name in ("scores", "weights"):  # products of fewer rows may differ in the last bit
            np.testing.assert_allclose(head[name], whole[name][chosen], rtol=1e-5, atol=1e-6)
        assert head["metrics"] == whole["metrics"]  # of the whole head, whichever rows are shown


# --- one screen --------------------------------------------------------------------------------------------


def text(length: int) -> str:
    return " ".join(f"w{number % 97}" for number in range(length))


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved trace of 3 layers of 32 heads and 300 tokens."""
    trace = attncli.inspect(text(300), d_model=64, num_heads=32)
    (layer,) = trace.layers
    layers = tuple(replace(layer, layer=index) for index in range(3))
    path = tmp_path_factory.mktemp("deep") / "deep.safetensors"
    replace(trace, source=trace.source._replace(layers=3), layers=layers).save(path)
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ["time flies like an arrow"],
        ["-m", "demo", "time flies like an arrow", "--layer", "all"],
        ["-m", "demo", "time flies like an arrow", "--query", "an"],
        ["-m", "MINILM", "the cat did not cross the street because it was tired"],
        ["-m", "MINILM", "the cat did not cross the street because it was tired", "--query", "it", "--layer", "all"],
        [text(200), "--num-heads", "16"],
    ],
    ids=" ".join,
)
def test_the_view_has_no_more_lines_than_the_terminal(arguments: list[str], minilm: str) -> None:
    arguments = [minilm if one == "MINILM" else one for one in arguments]
    code, _, shown = on_terminal("inspect", *arguments, out=True, COLUMNS="80", LINES="24")
    assert code == 0
    lines = text_shown(shown).splitlines()
    titles = ("toy layer", "demo ", Path(minilm).name)
    lines = lines[next(place for place, line in enumerate(lines) if line.startswith(titles)) :]  # below what it does
    assert 10 < len(lines) < 24  # the prompt stands below
    assert max(map(len, lines)) <= 80


def test_a_screen_reader_has_sentences(attn: Run) -> None:
    ran = attn("inspect", SENTENCE, "--head", "1", "--mask", "causal & ~queries(1,2)", ACCESSIBLE="1")
    weights = attncli.inspect(SENTENCE, mask="causal & ~queries(1,2)").layer(0).head(1).weights
    assert not set("░▒▓█▀·") & set(ran.out.split("\n\n", 1)[1])
    heaviest = sorted(range(4), key=lambda key: -weights[3, key])[:3]
    labels = ["time", "flies 1", "like 2", "an"]
    expected = ", ".join(f"{weights[3, key]:.2f} {labels[key]}" for key in heaviest)
    assert f"query 3 an: {expected}\n" in ran.out
    assert "layer 0 head 1" in ran.out
    sharp = attn("inspect", "-m", "demo", SENTENCE, "--head", "L2H3", ACCESSIBLE="1").out  # looks at one key alone
    assert ": 1.00 " in sharp
    assert "0.00" not in sharp
    long = attn("inspect", text(100), "--head", "0", ACCESSIBLE="1")
    assert long.out.count("\nquery ") == 10
    assert "the last 10 are printed" in long.err
