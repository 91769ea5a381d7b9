"""Comparisons of real and tiny checkpoints, against what the models themselves return."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from running import Run
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

SENTENCE, OTHER = "time flies like an arrow", "fruit flies like a banana"
LAYER, HEAD = 3, 5


@pytest.fixture(scope="module")
def changed(minilm: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("changed")
    for path in Path(minilm).iterdir():
        if path.is_file() and path.name != "model.safetensors":
            shutil.copy(path, folder)
    weights = load_file(Path(minilm) / "model.safetensors")
    (name,) = [name for name in weights if name.endswith(f"layer.{LAYER}.attention.self.query.weight")]
    rows = slice(HEAD * 32, (HEAD + 1) * 32)
    weights[name][rows] *= -1
    weights[name.replace("weight", "bias")][rows] *= -1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def test_the_head_whose_weights_were_changed_ranks_first(minilm: str, changed: str, attn: Run) -> None:
    ran = attn("diff", SENTENCE, "-m", minilm, "-m", changed, "-F", "json")
    assert (ran.code, ran.err) == (0, "")
    heads = ran.json["heads"]
    assert len(heads) == 72
    assert (heads[0]["layer"], heads[0]["head"]) == (LAYER, HEAD)
    assert heads[0]["jensen_shannon"] > 10 * heads[1]["jensen_shannon"]
    # What is below it, and beside it, has not moved; what is above reads other values.
    moved = {(head["layer"], head["head"]) for head in heads if head["jensen_shannon"]}
    assert moved == {(LAYER, HEAD), *((layer, head) for layer in (4, 5) for head in range(12))}
    best = ran.json["cells"][0]
    assert (best["layer"], best["head"]) == (LAYER, HEAD)


def with_heads_moved(model: Any) -> Any:
    width = model.config.hidden_size // 12
    moved = torch.arange(12 * width).reshape(12, width).roll(-1, 0).flatten()
    for layer in model.encoder.layer:
        for part in (layer.attention.self.query, layer.attention.self.key, layer.attention.self.value):
            part.weight.copy_(part.weight[moved])
            part.bias.copy_(part.bias[moved])
        output = layer.attention.output.dense
        output.weight.copy_(output.weight[:, moved])
    return model


def test_two_models_whose_heads_do_not_correspond_are_told(minilm: str, tmp_path: Path, attn: Run) -> None:
    with torch.no_grad():
        with_heads_moved(AutoModel.from_pretrained(minilm)).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(minilm).save_pretrained(tmp_path)
    ran = attn("diff", SENTENCE, "-m", minilm, "-m", tmp_path)
    assert ran.code == 0
    reason = r"\d of 72 heads match the head of their number best; by chance 6 would"
    assert re.search("the heads of the two models do not correspond: .*; " + reason, ran.err)
    assert attn("diff", SENTENCE, OTHER, "-m", tmp_path).err == ""  # of one model they do
