"""Long texts: some rows, the heaviest keys, maps that keep the largest weight, and one screen by default."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import on_terminal, text_shown

import attncli
from attncli.render.fit import LINES

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


def test_rows_and_columns_are_shown_in_the_order_in_which_they_are_named(attn: Run) -> None:
    def rows(*options: str) -> list[int]:
        document = attn("inspect", SENTENCE, "-F", "json", "--show", "weights", *options).json
        return [token["index"] for token in document["query_tokens"]]

    assert rows("--query", "like", "--query", "flies") == [2, 7, 1, 6]
    assert rows("--query", "like", "--query", "0:2", "--query", "-2:") == [2, 7, 0, 1, 8, 9]
    columns = attn("inspect", SENTENCE, "-F", "json", "--show", "weights", "--key", "2:4", "--key", "0").json
    assert [token["index"] for token in columns["key_tokens"]] == [2, 3, 0]
    table = attn("inspect", SENTENCE, "--query", "4:6", "--head", "0").out
    assert "\n4 arrow " in table
    assert "\n5 fruit " in table
    assert "\n3 an " not in table


# --- the heaviest keys -------------------------------------------------------------------------------------


def test_the_keys_that_are_shown_are_the_ones_that_are_ranked(attn: Run) -> None:
    options = ("--mask", "none", "--top-keys", "2", "--query", "3:4", "--key", "flies", "--key", "an", "-F", "json")
    document = attn("inspect", SENTENCE, *options).json
    assert [token["index"] for token in document["key_tokens"]] == [1, 6, 3]
    weights = attncli.inspect(SENTENCE, mask="none").layer(0).head(0).weights[3]
    ((keys),) = document["layers"][0]["heads"][0]["top_keys"]
    assert keys["keys"] == sorted([1, 6, 3], key=lambda key: (-weights[key], [1, 6, 3].index(key)))[:2]


def test_a_row_without_keys_lists_its_nan_and_is_marked(attn: Run) -> None:
    ran = attn("inspect", "a b c", "-H", "0", "--mask", "causal & ~queries(1,2)", "--top-keys", "2")
    (line,) = [line for line in ran.out.splitlines() if line.startswith("0  1 b !")]
    assert line.split()[4:] == ["nan", "0", "a", "nan", "1", "b", "nan"]
    (head,) = attn(
        "inspect", "a b c", "-H", "0", "--mask", "causal & ~queries(1,2)", "--top-keys", "2", "-F", "json"
    ).json["layers"][0]["heads"]
    assert head["top_keys"][1] == {"keys": [0, 1], "weights": ["nan", "nan"]}


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
        [text(200), "--top-keys", "3"],
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


def test_of_a_long_text_only_the_tokens_of_rows_and_keys_that_are_shown_are_listed(attn: Run) -> None:
    ran = attn("inspect", text(500), "--query", "-3:", "--top-keys", "4", "--head", "0")
    (listed,) = [line for line in ran.out.splitlines() if line.startswith("tokens ")]
    places = {int(place) for place in re.findall(r" (\d+) w", listed)}
    (_, *rows) = ran.out.split("head query")[1].splitlines()
    shown = [int(place) for row in rows for place in re.findall(r" (\d+) w", row)]
    assert places == {*shown}
    assert {497, 498, 499} < places
    assert len(ran.out) < 3000


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


def test_of_what_has_no_room_is_said_how_much_there_is_and_it_can_be_had(attn: Run, deep: Path) -> None:
    ran = attn("inspect", "--from", deep, "--layer", "1", "--width", "60")
    shown = re.findall(r"head \d+|H\d+", ran.out.split("weights of ")[-1])
    assert f"{len(shown)} of 32 heads (one of each label first)" in ran.err
    assert len(shown) < 32
    assert 15 < len(ran.out.splitlines()) <= LINES
    assert ran.err.startswith("attn: 300 tokens: showing ")
    for option in (["--all"], ["--show", "heatmap"]):
        whole = attn("inspect", "--from", deep, *option, "--layer", "all")
        assert whole.out.count("head 31") == 3
        assert not whole.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect"],
        ["inspect", "--top-keys", "1", "--query", "9990:", "-F", "tsv"],
        ["heads"],
        ["why", "-q", "9999", "-k", "0"],
        ["tokens", "-F", "jsonl"],
    ],
    ids=" ".join,
)
def test_a_line_of_ten_thousand_tokens_is_like_any_other(arguments: list[str], attn: Run) -> None:
    line = " ".join(f"w{number % 37}" for number in range(10_000))
    options = [] if arguments[0] == "tokens" else ["--d-model", "4", "--num-heads", "1"]
    value = {"arguments": [line]} if arguments[0] == "why" else {"stdin": f"{line}\n"}
    ran = attn(*arguments, *options, *value.pop("arguments", []), **value)
    assert ran.code == 0, ran.err
    assert 0 < len(ran.out) < 3_000_000  # bytes; a matrix would have 100 million cells
