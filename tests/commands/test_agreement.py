"""`attn diff --first` as a user runs it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import attncli

TEXT = "time flies like an arrow"
Run = Callable[..., Any]


@pytest.fixture
def ported(tiny_llama: str, tmp_path: Path) -> str:
    """The same weights with another rotary base."""
    folder = tmp_path / "ported"
    shutil.copytree(tiny_llama, folder)
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 100.0}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def capture(path: Path, model: str, *left_out: str) -> Path:
    """Write what a model computed as an engine would, from its trace."""
    trace = attncli.inspect(TEXT, model=model, layer="all")
    tensors = {
        f"layers.{layer.layer}.{name}": array
        for layer in trace.layers
        for name, array in (("q", layer.q), ("k", layer.k), ("v", layer.v))
    }
    tensors |= {"tokens": np.array([token.id for token in trace.query_tokens])}
    metadata = {"format": "attncli.capture/1", "rotated": "after", "dtype": "float32"}
    save_file({name: array for name, array in tensors.items() if name not in left_out}, path, metadata=metadata)
    return path


def test_the_cause_is_named_and_the_exit_code_is_1(tiny_llama: str, ported: str, attn: Run) -> None:
    ran = attn("diff", "--first", "-m", tiny_llama, "-m", ported, TEXT)
    assert (ran.code, ran.err) == (1, "")
    assert ran.out.startswith(f"A {tiny_llama}")
    assert "Layers 0-2, rotation: A and B differ by " in ran.out
    assert "Cause: rotary base 100 instead of 10000 (undone: " in ran.out.replace("\n", " ")
    swapped = attn("diff", "--first", "-m", ported, "-m", tiny_llama, TEXT)
    assert "rotary base 10000 instead of 100 " in swapped.out.replace("\n", " ")


def test_the_same_model_agrees(tiny_llama: str, tmp_path: Path, attn: Run) -> None:
    ran = attn("diff", "--first", "-m", tiny_llama, "-m", tiny_llama, TEXT)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.rstrip().endswith("to the last bit in the attention of every layer and in the model's output.")
    file = tmp_path / "agreement.json"
    path = capture(tmp_path / "b.safetensors", tiny_llama)
    assert attn("diff", "--first", "-m", tiny_llama, "--from", path, "-o", file).code == 0
    document = json.loads(file.read_text(), parse_constant=pytest.fail)
    assert (document["schema"], document["agrees"], document["partings"]) == ("attncli.agreement/1", True, [])
    assert [layer["layer"] for layer in document["layers"]] == [0, 1, 2]
    assert document["not_compared"] == ["The attention of layer 2 and the model's output were not compared."]
    assert "in the attention of layers 0-1; the attention of layer 2 and the model's" in document["sentences"][0]
    toy = attn("diff", "--first", "-m", "toy", "-m", "toy", TEXT)
    assert (toy.code, "A toy   B toy" in toy.out) == (0, True)
    assert document["layers"][0]["arrays"].keys() == {"v", "q", "k", "layer_output"}


@pytest.mark.parametrize("words", [["-"], ["-f", "-"]])
def test_two_models_read_standard_input_once(words: list[str], tiny_llama: str, ported: str, attn: Run) -> None:
    piped = attn("diff", "--first", "-m", tiny_llama, "-m", ported, *words, stdin=TEXT)
    assert piped == attn("diff", "--first", "-m", tiny_llama, "-m", ported, TEXT)


@pytest.mark.parametrize("words", [[], [TEXT]], ids=["its tokens", "a text"])
def test_a_capture_is_compared_with_its_model(
    words: list[str], tiny_llama: str, ported: str, tmp_path: Path, attn: Run
) -> None:
    path = capture(tmp_path / "b.safetensors", ported)
    ran = attn("diff", "--first", "-m", tiny_llama, "--from", path, "-F", "json", *words)
    assert ran.code == 1
    (parting,) = ran.json["partings"]
    assert (parting["stage"], parting["layers"]) == ("rotation", [0, 1, 2])
    assert {**parting["cause"], "undone": 0} == {"name": "rotary base", "b": "100", "a": "10000", "undone": 0}
    assert parting["cause"]["undone"] < 1e-6 < 1e-2 < parting["difference"]


def test_two_files_are_compared_as_far_as_they_go(tiny_llama: str, ported: str, tmp_path: Path, attn: Run) -> None:
    first, second = capture(tmp_path / "a.safetensors", tiny_llama), capture(tmp_path / "b.safetensors", ported)
    ran = attn("diff", "--first", "--from", first, "--from", second)
    assert ran.code == 1
    assert "Layer 0, rotation: A and B differ by " in ran.out
    assert "No candidate explains this difference." in ran.out.replace("\n", " ")
    assert ran.err == "attn: attn compares no layer after 0, as their input differs\n"


def test_a_capture_without_tokens_needs_the_text(tiny_llama: str, tmp_path: Path, attn: Run) -> None:
    path = capture(tmp_path / "b.safetensors", tiny_llama, "tokens")
    ran = attn("diff", "--first", "-m", tiny_llama, "--from", path)
    assert (ran.code, ran.err) == (2, "attn: give the text that both runs read: attn diff --first TEXT\n")
    assert attn("diff", "--first", "-m", tiny_llama, "--from", path, TEXT).code == 0
    ran = attn("diff", "--first", "-m", tiny_llama, "--from", path, "time flies")
    assert ran.code == 5
    assert "two runs of one checkpoint and one text" in ran.err


def test_another_text_is_another_token(tiny_llama: str, tmp_path: Path, attn: Run) -> None:
    path = capture(tmp_path / "b.safetensors", tiny_llama)
    ran = attn("diff", "--first", "-m", tiny_llama, "--from", path, TEXT.replace("time", "fruit"))
    assert ran.code == 1
    ids = [attncli.inspect(text, model=tiny_llama).query_tokens[0].id for text in (TEXT, "fruit")]
    assert f"Token ids: B has {ids[0]} at 0, and A has {ids[1]} at 0." in ran.out.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["-m", "LLAMA", TEXT], 2, "--first is given 1 model and 0 files; give two: -m A -m B, -m A --from FILE"),
        (["-m", "LLAMA", "-m", "LLAMA"], 2, "give the text that both runs read"),
        (["-m", "LLAMA", "-m", "LLAMA", TEXT, TEXT], 2, "compares two runs of one text"),
        (["-m", "LLAMA", "-m", "LLAMA", TEXT, "--top", "3"], 2, "--top does not apply to --first"),
        (["-m", "LLAMA", "-m", "LLAMA", TEXT, "-F", "csv"], 2, "--first writes no csv; give -F json"),
        (["-m", "LLAMA", "-m", "LLAMA", TEXT, "-F", "parquet"], 2, "--first writes no parquet; give -F json"),
        (["-m", "LLAMA", "-m", "LLAMA", TEXT, "-o", "a.csv"], 2, "of two give -F json"),
        (["-m", "toy", "-m", "toy", " ".join(["time"] * 2050)], 5, "at most 2,048 tokens; shorten the text"),
        (["-m", "LLAMA", "--from", "none.safetensors"], 5, "none.safetensors does not exist"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], code: int, sentence: str, tiny_llama: str, attn: Run) -> None:
    ran = attn("diff", "--first", *(word.replace("LLAMA", tiny_llama) for word in arguments))
    assert (ran.code, ran.out) == (code, "")
    assert sentence in ran.err
    assert ran.err.count("\n") == 1
