"""Checkpoints against transformers itself: eager attention with `output_attentions=True`, run on its own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from architectures import tiny_model
from conformance import opened, save, save_for_auto, stacked
from refusals import refused

import attncli
from attncli.errors import NotExposedError

pytestmark = pytest.mark.usefixtures("by_transformers")

SENTENCE, TARGET = "w7 w8 w9 w7 w5", "w3 w4 w5"


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_for_auto(tiny_model("t5"), tmp_path_factory.mktemp("t5")))


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_an_encoder_decoder_rolls_out_one_kind_at_a_time(kind: str, translator: str, attn: Callable[..., Any]) -> None:
    command = ("inspect", SENTENCE, "-m", translator, "--target", TARGET, "--rollout")
    document = attn(*command, "--kind", kind, "-F", "json").json
    trace = attncli.inspect(SENTENCE, model=translator, target=TARGET, layer="all", kind=kind)
    expected = np.eye(trace.layers[0].num_queries)
    for layer in trace.layers:
        expected = 0.5 * (stacked(layer).mean(axis=0) + np.eye(len(expected))) @ expected
    assert [layer["layer"] for layer in document["layers"]] == [2]
    np.testing.assert_allclose(document["layers"][0]["heads"][0]["weights"], expected, atol=1e-5)
    assert ("what comes from the encoder is left out" in document["derived"]["rules"][0]) == (kind == "decoder")
    for options, text_shown in (((), "one kind of attention"), (("--kind", "cross"), "the same tokens")):
        refused(attn(*command, *options), 2, text_shown)


def test_a_kind_has_its_own_rows_and_columns(translator: str, attn: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "trace.safetensors"
    arguments = ("inspect", SENTENCE, "-m", translator, "--target", TARGET, "-F", "json", "-l", "all")
    whole = attn(*arguments, "--save", path)
    assert attn("inspect", "--from", path, "-F", "json").out == whole.out
    for kind, shape in {"encoder": (5, 5), "decoder": (3, 3), "cross": (3, 5)}.items():
        layers = attn(*arguments, "--kind", kind).json["layers"]
        assert {layer["kind"] for layer in layers} == {kind}
        assert np.shape(layers[0]["heads"][0]["weights"]) == shape
        expected = [layer for layer in whole.json["layers"] if layer["kind"] == kind]
        for ours, theirs in zip(layers, expected, strict=True):  # the other kinds ran on the fast backend
            for head, same in zip(ours["heads"], theirs["heads"], strict=True):
                np.testing.assert_allclose(head["weights"], same["weights"], atol=1e-5)
        rows = attn(*arguments[:-4], "-F", "tsv", "--kind", kind, "-H", "0").out.splitlines()[1:]
        assert len(rows) == shape[0] * shape[1]
        assert rows[0].split("\t")[5] == ("w7" if kind == "encoder" else "w3")
    shown = attn(*arguments[:-4]).out
    assert "layer 0 · encoder" in shown
    assert "layer 0 · cross" in shown


def test_layers_of_a_hybrid_without_attention_are_listed(tmp_path: Path, attn: Callable[..., Any]) -> None:
    whole = ("-m", save_for_auto(tiny_model("qwen3_next"), tmp_path))
    ran = attn("inspect", "w7 w8", "w9 w7", *whole, "-l", "0,1", "-F", "jsonl", "--show", "metrics")
    text_shown = "attn: warning: layer 0 has linear_attention, no softmax attention; it is not shown\n"
    assert (ran.code, ran.err) == (0, text_shown)  # once, and of no sentence
    document = json.loads(ran.out.splitlines()[0])
    assert document["source"]["other_layers"] == [{"layer": layer, "kind": "linear_attention"} for layer in (0, 2)]
    assert [layer["layer"] for layer in document["layers"]] == [1]
    saved = attn("inspect", "w7 w8", *whole, "-l", "0,1", "--save", tmp_path / "trace.safetensors")
    assert saved.err == attn("inspect", "--from", tmp_path / "trace.safetensors").err == text_shown
    refused(attn("inspect", "w7", *whole, "-l", "0"), 4, "no softmax attention but linear_attention", "attention: 1\n")
    refused(attn("inspect", "w7", *whole, "--rollout"), 4, "layer 0 is not there")


def test_keys_that_an_indexer_chose_are_the_mask_and_no_mask_replaces_them(tmp_path: Path) -> None:
    save(tiny_model("deepseek_v32"), tmp_path)
    text = "w23 w42 w17 w88 w23 w64 w31"
    for layer in opened(tmp_path, "all").trace(text).layers:
        allowed = layer.mask.rows(list(range(layer.num_heads)), np.arange(7))
        assert allowed.sum(axis=-1).max() == 4  # index_topk of the tiny model
        assert not np.triu(allowed[0], 1).any()
    with pytest.raises(NotExposedError, match="--mask; drop it"):
        opened(tmp_path, "all", mask="full").trace(text)


def test_the_model_runs_once_and_stays_as_it_was_loaded(tmp_path: Path) -> None:
    save(tiny_model("llama"), tmp_path)
    source, ran = opened(tmp_path, "0"), list[str]()
    before = source.model.config._attn_implementation
    source.model.layers[0].self_attn.register_forward_pre_hook(lambda *_: ran.append("attention"))
    source.model.layers[0].mlp.register_forward_pre_hook(lambda *_: ran.append("feed-forward"))
    source.trace("w7 w8 w9")
    assert (ran, source.model.config._attn_implementation) == (["attention"], before)
