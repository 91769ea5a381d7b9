"""Comparisons of real and tiny checkpoints, against what the models themselves return."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import tiny_model
from conformance import save, save_for_auto
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer, T5Config, T5Model

import attncli

SENTENCE, OTHER = "time flies like an arrow", "fruit flies like a banana"
LAYER, HEAD = 3, 5

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def changed(minilm: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """MiniLM with the queries of one head turned round."""
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


def divergence(first: list[float], second: list[float]) -> float:
    total = 0.0
    for p, q in zip(first, second, strict=True):
        total += sum(mass * math.log2(mass / ((p + q) / 2)) for mass in (p, q) if mass > 0) / 2
    return total


def test_the_ranking_of_the_two_uses_of_flies_is_that_of_the_models_own_attentions(minilm: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    model = AutoModel.from_pretrained(minilm, attn_implementation="eager").eval()
    with torch.no_grad():
        attentions = [
            torch.stack(model(**tokenizer(text, return_tensors="pt"), output_attentions=True).attentions)[:, 0]
            for text in (SENTENCE, OTHER)
        ]
    shared = [0, 2, 3, 6]  # [CLS] flies like [SEP]
    expected = {}
    for layer in range(6):
        for head in range(12):
            rows = []
            for row in shared:
                kept = [[float(each[layer, head, row, key]) for key in shared] for each in attentions]
                rows.append(divergence(*([*row, 1 - math.fsum(row)] for row in kept)))
            expected[layer, head] = sum(rows) / len(rows)
    first, second = (attncli.inspect(text, model=minilm, layers="all") for text in (SENTENCE, OTHER))
    found = attncli.diff(first, second)
    assert {(head.layer, head.head): head.jensen_shannon for head in found.heads} == pytest.approx(expected, abs=1e-5)
    best = found.cells[0]
    assert best.weights == pytest.approx(
        [float(each[best.layer, best.head, best.query[0], best.key[0]]) for each in attentions], abs=1e-6
    )


def test_checkpoints_of_other_tokenizers_layers_and_heads_are_compared_where_they_meet(
    minilm: str, tiny_llama: str, attn: Run
) -> None:
    ran = attn("diff", SENTENCE, "-m", minilm, "-m", tiny_llama, "-F", "json")
    assert ran.code == 0
    assert ran.err == "attn: only A has layers 3-5\nattn: only A has heads 6-11 of layers 0-2\n"
    words = [ran.json["a"]["key_tokens"][one]["text"] for one, _ in ran.json["shared"]["keys"]]
    assert words == SENTENCE.split()
    assert len(ran.json["heads"]) == 3 * 6
    shown = attn("diff", SENTENCE, "-m", minilm, "-m", tiny_llama, "--top", "3").out
    assert "bert" in shown
    assert "llama" in shown
    assert "elsewhere A" in shown


def test_an_encoder_decoder_has_a_ranking_of_its_three_kinds(tmp_path: Path, attn: Run) -> None:
    torch.manual_seed(0)
    config = T5Config(vocab_size=128, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, initializer_factor=5.0)
    save_for_auto(T5Model(config), tmp_path)
    where = ("-m", tmp_path, "--target", "w9 w8 w7")
    ran = attn("diff", "w5 w6 w7", "w5 w6 w8 w9", *where, "-F", "json")
    assert ran.code == 0, ran.err
    rows = {head["kind"]: head["rows"] for head in ran.json["heads"]}
    decoder = len(ran.json["a"]["query_tokens"])
    assert rows == {"encoder": 2, "decoder": decoder, "cross": decoder}
    assert len(ran.json["heads"]) == 3 * 2 * 4
    first = [head for head in ran.json["heads"] if (head["kind"], head["layer"]) == ("decoder", 0)]
    assert {head["jensen_shannon"] for head in first} == {0.0}  # the decoder's first layer has not met the encoder
    chosen = attn("diff", "w5 w6 w7", "w5 w6 w8 w9", *where, "-F", "json", "-q", "w8").json["heads"]
    assert {head["kind"]: head["rows"] for head in chosen} == {"encoder": 2, "decoder": 1, "cross": 1}
    shown = attn("diff", "w5 w6 w7", "w5 w6 w8 w9", *where)
    assert shown.code == 0
    assert "queries  0 " in shown.out
    assert "keys A" in shown.out


def test_what_a_sink_takes_is_elsewhere(tmp_path: Path) -> None:
    torch.manual_seed(0)
    save(tiny_model("gpt_oss"), tmp_path)
    first, second = (attncli.inspect(text, model=str(tmp_path), layers="all") for text in ("w5 w6 w7", "w6 w5 w7"))
    same = attncli.diff(first, first)
    assert {head.jensen_shannon for head in same.heads} == {0.0}
    for head in same.heads:
        taken = 1 - first.layer(head.layer).head(head.head).weights.sum(axis=1, dtype=np.float64)
        assert head.elsewhere == pytest.approx([taken.mean()] * 2, abs=1e-6)
        assert taken.mean() > 1e-6
    assert attncli.diff(first, second).heads[0].jensen_shannon
