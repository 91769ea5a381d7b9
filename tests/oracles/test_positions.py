"""Layers whose queries or keys are no tokens one by one: what they are called, and every view and format of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import tiny_inputs, tiny_model
from conformance import opened, save, save_for_auto, words
from pages import document_of, page_of, weights_in
from running import program

import attncli

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, str]:
    """A saved trace of three layers: blocks of two tokens, of three, and none; the model's own weights; its text."""
    folder, model = tmp_path_factory.mktemp("deepseek"), tiny_model("deepseek_v4")
    save_for_auto(model, folder)
    inputs = tiny_inputs(model.config)
    text = words(inputs["input_ids"]) or ""
    with torch.no_grad():
        own = [weights[0].numpy() for weights in model(**inputs, output_attentions=True).attentions]
    trace = attncli.inspect(text, model=str(folder), layers="all", special=False)
    path = folder / "trace.safetensors"
    trace.save(path)
    return path, own, text


def test_compressed_blocks_are_keys_that_are_called_by_their_tokens(deepseek: Any) -> None:
    path, own, text = deepseek
    trace = attncli.load(path)
    called = [[token.text for token in trace.sides(layer)[1]][len(trace.key_tokens) :] for layer in trace.layers]
    # The sparse kind takes in the tokens of the block before; the last token belongs to no whole block.
    assert called == [["tokens 0-1", "tokens 0-3", "tokens 2-5"], ["tokens 0-2", "tokens 3-5"], []]
    for layer, weights in zip(trace.layers, own, strict=True):
        queries, keys = trace.sides(layer)
        assert queries is trace.query_tokens
        assert keys[: len(queries)] == tuple(queries)
        for block in keys[len(queries) :]:
            pieces = [trace.key_tokens[piece] for piece in block.pieces]
            assert text[block.start : block.end].split() == [piece.text for piece in pieces]
            assert not block.special
        assert weights.shape == layer.cells
        shown = np.stack([layer.head(head).weights for head in range(layer.num_heads)])
        np.testing.assert_allclose(shown, weights, atol=1e-6)


def test_every_format_has_the_cells_that_the_model_computed(deepseek: Any, attn: Run, tmp_path: Path) -> None:
    path, own, _ = deepseek
    document = attn("inspect", "--from", path, "-F", "json").json
    assert [("key_tokens" in layer, "query_tokens" in layer) for layer in document["layers"]] == [
        (True, False),
        (True, False),
        (False, False),
    ]
    assert len(document["key_tokens"]) == 7
    block = document["layers"][0]["key_tokens"][9]
    assert block == {
        "index": 9, "id": None, "text": "tokens 2-5", "start": 8, "end": 23, "special": False, "segment": 0,
        "pieces": [2, 3, 4, 5],
    }  # fmt: skip
    for layer, weights in zip(document["layers"], own, strict=True):
        np.testing.assert_allclose([head["weights"] for head in layer["heads"]], weights, atol=1e-6)

    names = [
        [token["text"] for token in layer.get("key_tokens", document["key_tokens"])] for layer in document["layers"]
    ]
    expected = [
        (layer, head, query, key, names[layer][key], float(weights[head, query, key]))
        for layer, weights in enumerate(own)
        for head, query, key in np.ndindex(*weights.shape)
    ]
    for form, comma in (("tsv", "\t"), ("csv", ",")):
        lines = [line.split(comma) for line in attn("inspect", "--from", path, "-F", form).out.splitlines()[1:]]
        assert len(lines) == len(expected)
        for line, (layer, head, query, key, name, weight) in zip(lines, expected, strict=True):
            assert (line[1], line[3], line[4], line[6], line[7]) == (str(layer), str(head), str(query), str(key), name)
            assert float(line[10]) == pytest.approx(weight, abs=1e-6)

    parquet = tmp_path / "cells.parquet"
    assert attn("inspect", "--from", path, "-o", parquet).code == 0
    table = pytest.importorskip("pyarrow.parquet").read_table(parquet).to_pydict()
    assert list(zip(table["layer"], table["head"], table["query"], table["key"], table["key_token"], strict=True)) == [
        line[:5] for line in expected
    ]
    np.testing.assert_allclose(table["weight"], [line[5] for line in expected], atol=1e-6)

    page = page_of(attn, tmp_path / "page.html", "--from", str(path))
    described = document_of(page)
    lists = [[token["label"] for token in described["sequences"][layer["columns"]]] for layer in described["layers"]]
    assert lists == names
    for (layer, head), weights in weights_in(page).items():
        np.testing.assert_allclose(weights, own[layer][head], atol=6e-4)

    drawn = attn("inspect", "--from", path, "-F", "svg", "--layer", "0", "--show", "tokens,weights,mask")
    assert drawn.code == 0
    assert "tokens 2-5" in drawn.out.replace("&#160;", " ")


def test_the_trace_file_gives_the_same_bytes_back(deepseek: Any, attn: Run, tmp_path: Path) -> None:
    path, *_ = deepseek
    again = tmp_path / "again.safetensors"
    assert attn("inspect", "--from", path, "--save", again).code == 0
    assert again.read_bytes() == path.read_bytes()


def test_positions_are_chosen_by_name_and_by_index(deepseek: Any, attn: Run) -> None:
    path, own, _ = deepseek

    def shown(*arguments: str) -> Any:
        (layer,) = attn("inspect", "--from", path, "-F", "json", "--layer", "0", *arguments).json["layers"]
        return [head["weights"] for head in layer["heads"]]

    for key in ("tokens 2-5", "9", "-1"):
        np.testing.assert_allclose(shown("--key", key), own[0][:, :, [9]], atol=1e-6)
    ran = attn("inspect", "--from", path, "--layer", "2", "--key", "tokens 2-5")
    assert (ran.code, ran.out) == (2, "")
    assert "no such key token" in ran.err
    # Every layer that is asked for needs it.
    assert "there are 9 key tokens, 0..8" in attn("inspect", "--from", path, "--key", "9").err
    (cell,) = attncli.why(attncli.load(path, layers=1, heads=2), query=6, key="tokens 3-5")
    assert cell.weight == pytest.approx(own[1][2, 6, 8], abs=1e-6)


def test_metrics_are_of_the_tokens_where_positions_count(deepseek: Any) -> None:
    path, own, _ = deepseek
    metrics = {(head.layer, head.head): head.metrics for head in attncli.heads(attncli.load(path)).heads}
    for layer, weights in enumerate(own):
        for head, rows in enumerate(weights.astype(float)):
            found = metrics[layer, head]
            assert found["self"] == pytest.approx(np.mean([rows[q, q] for q in range(7)]), abs=1e-5)
            assert found["previous"] == pytest.approx(np.mean([rows[q, q - 1] for q in range(1, 7)]), abs=1e-5)
            assert found["next"] == pytest.approx(np.mean([rows[q, q + 1] for q in range(6)]), abs=1e-5)
            assert found["sink"] == pytest.approx(rows[1:, 0].mean(), abs=1e-5)
            assert found["duplicate"] == pytest.approx(rows[4, 0], abs=1e-5)  # w23 stands at 0 and at 4
            assert found["induction"] == pytest.approx(rows[4, 1], abs=1e-5)
            assert found["max_weight"] == pytest.approx(rows.max(axis=1).mean(), abs=1e-5)
            assert (found["distance"] is None) == (layer < 2)


def test_what_needs_tokens_says_so(deepseek: Any, attn: Run) -> None:
    path, *_ = deepseek
    refused = {
        "--words": "--words merges pieces of tokens; layers 0-1 have positions that stand for several or for none",
        "--rollout": "--rollout multiplies the attention of tokens; layers 0-1 have positions",
    }
    for option, said in refused.items():
        ran = attn("inspect", "--from", path, option)
        assert (ran.code, ran.out) == (2, "")
        assert said in ran.err
    ran = attn("inspect", "--from", path, "--mean", "layers")
    assert (ran.code, "stand for other tokens; choose layers with --layer" in ran.err) == (2, True)
    ran = attn("diff", "--from", path, "--from", path)
    assert (ran.code, "diff compares the attention of tokens; layers 0-1 have" in ran.err) == (2, True)
    assert attn("diff", "--from", path, "--from", path, "--layer", "2").code == 0
    ran = attn("inspect", "-m", path.parent, "w5 w6 w7", "--mask", "causal")
    assert (ran.code, "positions that are no tokens; --mask says nothing of them" in ran.err) == (4, True)


def test_norms_and_means_of_heads_are_over_blocks_too(deepseek: Any) -> None:
    path, own, _ = deepseek
    trace = attncli.load(path, layers=0)
    lengths = np.linalg.norm(trace.layers[0].v[0], axis=-1)
    derived = attncli.derive(trace, norms=True, mean="heads")
    (layer,) = derived.layers
    assert derived.sides(layer)[1][-1].text == "tokens 2-5"
    np.testing.assert_allclose(layer.head(0).weights, (own[0] * lengths).mean(axis=0), atol=1e-5)


DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "too few": lambda layer: layer["key_tokens"].pop(),
    "no list": lambda layer: layer.update(key_tokens="all"),
    "no token": lambda layer: layer.update(key_tokens=[5] * 10),
    "pieces that are no numbers": lambda layer: layer["key_tokens"][9].update(pieces=["2"]),
    "pieces with a gap": lambda layer: layer["key_tokens"][9].update(pieces=[2, 5]),
    "pieces before the first": lambda layer: layer["key_tokens"][9].update(pieces=[-1, 0]),
    "another order": lambda layer: layer["key_tokens"].reverse(),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_file_whose_positions_make_no_sense_is_refused(deepseek: Any, attn: Run, tmp_path: Path, name: str) -> None:
    from safetensors import safe_open
    from safetensors.numpy import save_file

    path, *_ = deepseek
    with safe_open(path, "numpy") as file:
        header = json.loads(file.metadata()["attncli"])
        tensors = {each: file.get_tensor(each) for each in file.keys()}  # noqa: SIM118
    DAMAGE[name](header["layers"][0])
    damaged = tmp_path / "damaged.safetensors"
    save_file(tensors, damaged, metadata={"attncli": json.dumps(header)})
    ran = attn("inspect", "--from", damaged)
    assert (ran.code, ran.out) == (5, "")
    assert ran.err.count("\n") == 1
    assert "Traceback" not in ran.err


def test_the_program_says_what_a_layer_has_besides_tokens(deepseek: Any) -> None:
    path, *_ = deepseek
    ran = program("inspect", "--from", path, "--layer", "0-1", "--show", "tokens")
    assert ran.returncode == 0
    lines = ran.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines if line.startswith(("tokens", "keys"))] == [
        "tokens", "keys of layer 0", "keys of layer 1",
    ]  # fmt: skip


def stacked_maps(layer: Any) -> Any:
    return np.stack([layer.head(head).weights for head in range(layer.num_heads)])


def test_sentences_of_one_length_run_together(tmp_path: Path) -> None:
    model = tiny_model("deepseek_v4")
    save(model, tmp_path)
    ids = tiny_inputs(model.config)["input_ids"]
    sentences = [words(each) or "" for each in (ids, ids.flip(1), ids + 1)]
    source = opened(tmp_path, "0-1")
    for together, text in zip(source.traces(sentences), sentences, strict=True):
        alone = source.trace(text)
        for one, other in zip(together.layers, alone.layers, strict=True):
            assert together.sides(one) == alone.sides(other)
            np.testing.assert_allclose(stacked_maps(one), stacked_maps(other), atol=1e-5)
