"""Commands on exported models: layouts of folders, tokenizers, pictures and refusals."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from imported import HEAVY, PROGRAM, imported_by
from onnx_exports import exported, model_of, write
from person import person
from refusals import INPUT, LOAD, NOT_EXPOSED, USAGE, refused
from running import Run, program
from small_checkpoints import hub_cache, minilm_folder

import attncli

PICTURE = Path(__file__).parents[2] / "docs/cookbook/files/scenes/3.png"
TEXT = "time flies like an arrow"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export a small BERT with the vocabulary of MiniLM, as transformers.js has it; its checkpoint stands beside."""
    folder = tmp_path_factory.mktemp("bert")
    model = model_of("bert", vocab_size=30522)
    for path in (folder / "model", folder / "checkpoint"):
        model.save_pretrained(path)
        for name in TOKENIZER:
            shutil.copy(Path(minilm_folder()) / name, path)
    (folder / "model/model.safetensors").unlink()
    ids = torch.tensor([[101, 2051, 102]])
    names = ("input_ids", "attention_mask", "token_type_ids")
    write(folder / "model/onnx/model.onnx", model, dict(zip(names, (ids, ids * 0 + 1, ids * 0), strict=True)))
    return folder


def test_a_folder_and_its_graph_are_the_checkpoint(bert: Path, attn: Run) -> None:
    expected = attncli.inspect(TEXT, str(bert / "checkpoint"), layer="all", pair="fruit flies")
    for name in ("model", "model/onnx", "model/onnx/model.onnx"):
        trace = attncli.inspect(TEXT, str(bert / name), layer="all", pair="fruit flies")
        assert [token.text for token in trace.key_tokens] == [token.text for token in expected.key_tokens]
        for layer, other in zip(trace, expected, strict=True):
            for array in ("q", "k", "v", "weights", "scores"):
                np.testing.assert_allclose(getattr(layer, array), getattr(other, array), atol=1e-5)
    graph = bert / "model/onnx/model.onnx"
    before = graph.read_bytes()
    shown = attn("diff", "-m", bert / "checkpoint", "-m", bert / "model", TEXT)
    assert graph.read_bytes() == before
    assert "No head of 4 changed" in shown.out
    assert "float32 on cpu · onnxruntime" in shown.out


def test_the_cache_of_the_hub_is_read(bert: Path, tmp_path: Path) -> None:
    environment = hub_cache(tmp_path, "some/bert", str(bert / "model"))
    shown = program("inspect", "-m", "some/bert", TEXT, "--show", "shapes", env=environment)
    assert shown.stdout.startswith("some/bert · bert · 2 layers")


def test_many_sentences_and_views(bert: Path, attn: Run) -> None:
    lines = attn("inspect", "-m", bert / "model", "--show", "metrics", "-F", "jsonl", TEXT, " ", "an arrow")
    assert (lines.code, [json.loads(line)["sentence"] for line in lines.out.splitlines()]) == (5, [1, 3])
    assert "flies" in attn("tokens", "-m", bert / "model", TEXT).out
    assert attn("heads", "-m", bert / "model", TEXT).code == 0
    assert "arrow" in attn("why", "-m", bert / "model", TEXT, "--query", "arrow").out


def test_a_graph_is_explored(bert: Path) -> None:
    with person("explore", TEXT, "-m", str(bert / "model")) as one:
        one.until("the output of the graph's own attention")
        one.types("\x03")
        code, printed = one.left()
    assert (code, printed.startswith(f"attn inspect '{TEXT}' -m ")) == (0, True)


def test_neither_torch_nor_transformers_is_imported(bert: Path) -> None:
    modules = imported_by(PROGRAM, "inspect", "-m", bert / "model", TEXT)
    assert "onnxruntime" in modules
    assert not HEAVY & modules


def test_a_vision_transformer_reads_a_picture(attn: Run, tmp_path: Path) -> None:
    settings = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}, "resample": 3}
    settings |= {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.6, 0.7]}
    exported(tmp_path / "vit", "vit")
    model_of("vit").save_pretrained(tmp_path / "checkpoint")
    for folder in ("vit", "checkpoint"):
        (tmp_path / folder / "preprocessor_config.json").write_text(json.dumps(settings))
    trace, expected = (
        attncli.inspect("", str(tmp_path / folder), image=str(PICTURE), layer="all") for folder in ("vit", "checkpoint")
    )
    assert [token.text for token in trace.key_tokens] == [token.text for token in expected.key_tokens]
    for layer, other in zip(trace, expected, strict=True):
        np.testing.assert_allclose(layer.weights, other.weights, atol=1e-5)
    assert "r0c1" in attn("inspect", "-m", tmp_path / "vit", "--image", PICTURE, "--query", "@r0c1").out
    refused(attn("inspect", "-m", tmp_path / "vit", TEXT), USAGE, "reads pictures; give --image FILE without a text")


def test_refusals(bert: Path, attn: Run, tmp_path: Path) -> None:
    graph = bert / "model/onnx/model.onnx"
    for option in (["--engine", "native"], ["--dtype", "float16"], ["--generate", "2"], ["--device", "cuda"]):
        refused(attn("inspect", "-m", graph, TEXT, *option), NOT_EXPOSED, f"{option[0]} does not apply to")
    refused(attn("inspect", "-m", graph, TEXT, "--mask", "causal"), NOT_EXPOSED, "--mask does not apply to")
    refused(attn("ablate", "-m", graph, TEXT), NOT_EXPOSED, "reads no next token")
    refused(attn("inspect", "-m", graph, TEXT, "--layer", "7"), USAGE, "has 2 layers, 0..1")
    refused(attn("inspect", "-m", graph, TEXT, "--kind", "cross"), USAGE, "has self attention")
    refused(attn("inspect", "-m", graph, TEXT, "--target", "x"), USAGE, "--target needs an encoder-decoder")
    refused(attn("inspect", "-m", graph, TEXT, "--base", "demo"), USAGE, "is an ONNX model; drop --base")
    refused(attn("inspect", "-m", tmp_path / "x.onnx", TEXT), LOAD, "there is no such file")
    shutil.copy(graph, tmp_path / "a.onnx")
    refused(attn("inspect", "-m", tmp_path / "a.onnx", TEXT), LOAD, "has no tokenizer.json", "--ids")
    refused(attn("inspect", "-m", tmp_path / "a.onnx", "--ids", "1 40000"), INPUT, "does not run on this input")
    shutil.copy(graph, tmp_path / "b.onnx")
    refused(attn("inspect", "-m", tmp_path, TEXT), LOAD, "holds 2 ONNX files; give one of them: a.onnx, b.onnx")


def test_the_missing_extra_is_named(bert: Path, attn: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attncli.errors.not_installed", lambda *packages: list(packages))
    refused(attn("inspect", "-m", bert / "model", TEXT), LOAD, "needs onnx and onnxruntime, which are not installed")


def test_a_graph_that_reads_something_else_is_refused(attn: Run, tmp_path: Path) -> None:
    ids = torch.tensor([[1, 2, 3]])
    model = model_of("bert")
    states = model.embeddings(ids).detach()
    write(tmp_path / "model.onnx", model, {"inputs_embeds": states, "attention_mask": ids * 0 + 1})
    refused(attn("inspect", "-m", tmp_path, "--ids", "1 2 3"), NOT_EXPOSED, "reads inputs_embeds")


def test_layers_that_a_graph_lacks_are_noted(attn: Run, tmp_path: Path) -> None:
    exported(tmp_path, "bert")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 5}))
    shown = attn("inspect", "-m", tmp_path, "--ids", "1 2 3")
    assert "the graph has attention in 2 layers, and config.json has 5" in shown.err
