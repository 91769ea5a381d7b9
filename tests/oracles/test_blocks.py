"""Attention in bands and blocks: every pair of tokens has the weight that the model computes for it."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from architectures import MORE, tiny_model
from conformance import opened, save, stacked
from odd_layouts import whole_map
from rounding import of_weights
from transformers import (
    LongformerForQuestionAnswering,
    LongformerForSequenceClassification,
    PreTrainedModel,
)

from attncli.engines.torch.architectures import longformer as longformer_layout
from attncli.errors import NotExposedError
from attncli.trace.trace import Trace

pytestmark = pytest.mark.usefixtures("by_transformers")

IDS = [5 + 7 * index % 100 for index in range(29)]  # of no multiple of any block
TEXT = " ".join(f"w{id_}" for id_ in IDS)


def tiny(monkeypatch: pytest.MonkeyPatch, name: str, **more: Any) -> Any:
    monkeypatch.setitem(MORE, name, MORE.get(name, {}) | more)
    return tiny_model(name)


def returned(model: PreTrainedModel, ids: list[int]) -> Any:
    model.config.use_cache = False
    given = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"] = torch.tensor([[7, 8]])
    with torch.no_grad():
        return model(**given, output_attentions=True)


def check_proofs(trace: Trace) -> None:
    for layer in trace.layers:
        assert layer.proof is not None
        assert layer.proof.max_abs_error <= 1e-5 * max(layer.proof.magnitude, 1)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("longformer", {"attention_window": [4, 16, 8]}),
        ("longformer", {"attention_window": 64}),  # wider than the text
        ("led", {"attention_window": [6, 4, 12]}),
    ],
)
def test_a_long_text_has_every_weight_of_the_model(
    name: str, more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(monkeypatch, name, **more)
    save(model, tmp_path)
    trace = opened(tmp_path, "all").trace(TEXT)
    output = returned(model, IDS)
    for layer, cells in zip(trace.layers, output.get("attentions") or output.encoder_attentions, strict=True):
        expected = whole_map(name, cells[0].numpy(), len(IDS), len(IDS))
        np.testing.assert_allclose(stacked(layer), expected, atol=1e-6, rtol=0)
        np.testing.assert_allclose(stacked(layer).sum(axis=-1), 1, atol=1e-5)
        assert layer.capture == "exact"
    check_proofs(trace)


@pytest.mark.parametrize("name", ["led", "longformer"])
def test_sentences_side_by_side_are_what_each_is_alone(name: str, tmp_path: Path) -> None:
    save(tiny_model(name), tmp_path)
    source = opened(tmp_path, "all")
    texts = [TEXT[:40], TEXT[4:44].strip(), TEXT[8:23].strip(), TEXT[12:27].strip()]
    target = "w7 w8 w9" if source.is_encoder_decoder else None
    together = list(source.traces(texts, target=target))
    for text, trace in zip(texts, together, strict=True):
        for ours, alone in zip(trace.layers, source.trace(text, target=target).layers, strict=True):
            exact = max(1e-5, of_weights(alone, 6 * 48))  # sums of 48 terms, of six layers
            np.testing.assert_allclose(stacked(ours), stacked(alone), atol=exact, rtol=0)
        check_proofs(trace)


def test_a_layout_that_is_wrong_is_noticed(tmp_path: Path) -> None:
    save(tiny_model("longformer"), tmp_path)
    right = longformer_layout._placed

    def shifted(scores: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> Any:
        return right(scores, weights, keys + 1)

    def swapped(scores: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> Any:
        return right(scores, weights, keys.where((keys != 4) & (keys != 5), 9 - keys))

    noticed = pytest.raises(NotExposedError, match="attends to positions that are no tokens")
    with patch.object(longformer_layout, "_placed", shifted), noticed:
        opened(tmp_path, "0").trace(TEXT)
    with patch.object(longformer_layout, "_placed", swapped):
        layer = opened(tmp_path, "0").trace(TEXT).layers[0]
    assert layer.proof is not None
    assert layer.proof.max_abs_error > 0.1


# --- global tokens -------------------------------------------------------------------------------------------


def longformer(model_class: type, folder: Path, separator: int = 3) -> PreTrainedModel:
    config = tiny_model("longformer").config
    config.sep_token_id = separator
    config.initializer_range = 0.2  # scores of a usual size
    torch.manual_seed(0)
    model = model_class(config).eval()
    save(model, folder)
    return model


def seen_with_global_tokens(output: Any, number: int, tokens: list[int]) -> np.ndarray:
    """`[H, Q, K]` of one layer, by the two tensors that a Longformer returns."""
    band, everywhere = output.attentions[number][0].numpy(), output.global_attentions[number][0].numpy()
    heads, queries, width = band.shape
    side = (width - len(tokens)) // 2
    found = np.zeros((heads, queries, queries), np.float32)
    for query in range(queries):
        for place, key in enumerate(tokens):
            found[:, query, key] += band[:, query, place]
        for column in range(2 * side + 1):
            key = query - side + column
            if 0 <= key < queries:
                found[:, query, key] += band[:, query, len(tokens) + column]
    for place, query in enumerate(tokens):
        assert not found[:, query].any()
        found[:, query] = everywhere[:, :queries, place]
        assert not everywhere[:, queries:, place].any()
    return found


@pytest.mark.parametrize(
    ("model_class", "ids", "tokens"),
    [
        (LongformerForSequenceClassification, IDS, [0]),
        (LongformerForQuestionAnswering, [2, 7, 8, 9, 3, 3, *IDS[:15], 3], [0, 1, 2, 3]),
    ],
)
def test_the_tokens_that_a_longformer_s_task_makes_global_see_all_and_are_seen(
    model_class: type, ids: list[int], tokens: list[int], tmp_path: Path
) -> None:
    model = longformer(model_class, tmp_path)
    source = opened(tmp_path, "all")
    trace = source.trace(" ".join(f"w{id_}" for id_ in ids))
    output = returned(model, ids)
    for number, layer in enumerate(trace.layers):
        expected = seen_with_global_tokens(output, number, tokens)
        np.testing.assert_allclose(stacked(layer), expected, atol=1e-6, rtol=0)
        # Queries, keys and values of the global rows are of other matrices than those of the others.
        assert (layer.capture, layer.scale) == ("weights-only", None)
        mask = layer.head(0).mask
        assert mask[tokens].all()
        assert mask[:, tokens].all()
        assert mask.sum() < mask.size
    check_proofs(trace)
    assert not any("mask is not" in note for note in (*source.notes, *trace.notes))
    assert not any("no token sees the whole text" in note for note in source.notes)


def test_a_question_without_its_three_separators_has_no_global_token(tmp_path: Path) -> None:
    longformer(LongformerForQuestionAnswering, tmp_path)
    mask = opened(tmp_path, "0").trace(TEXT).layers[0].head(0).mask
    np.testing.assert_array_equal(mask, np.abs(np.subtract.outer(np.arange(29), np.arange(29))) <= 2)


def test_a_longformer_without_a_task_says_that_no_token_is_global(tmp_path: Path) -> None:
    save(tiny_model("longformer"), tmp_path)
    assert any("no token sees the whole text" in note for note in opened(tmp_path, "0").notes)


# --- values side by side -------------------------------------------------------------------------------------


def test_the_two_values_of_diffllama_stand_side_by_side(tmp_path: Path) -> None:
    model = tiny_model("diffllama")
    save(model, tmp_path)
    layer = opened(tmp_path, "0").trace("w7 w8 w9").layers[0]
    with torch.no_grad():
        hidden = model.layers[0].input_layernorm(model.embed_tokens(torch.tensor([[7, 8, 9]])))
        values = model.layers[0].self_attn.v_proj(hidden)[0].unflatten(-1, (2, -1)).transpose(0, 1).numpy()
    # Either half of the key/value heads goes to all of them.
    assert layer.v is not None
    width = values.shape[-1]
    np.testing.assert_allclose(layer.v[:, :, :width], values[[0, 0]], atol=1e-6)
    np.testing.assert_allclose(layer.v[:, :, width:], values[[1, 1]], atol=1e-6)


def test_the_layout_of_a_lilt_has_its_values_beside_those_of_the_text(tmp_path: Path) -> None:
    model = tiny_model("lilt")
    save(model, tmp_path)
    layer = opened(tmp_path, "0").trace("w7 w8 w9").layers[0]
    found: dict[str, torch.Tensor] = {}
    attention = model.encoder.layer[0].attention.self
    for name in ("value", "layout_value"):
        part = getattr(attention, name)
        part.register_forward_hook(lambda _, __, output, name=name: found.update({name: output}))
    returned(model, [7, 8, 9])
    sides = [found[name][0].unflatten(-1, (4, -1)).transpose(0, 1).numpy() for name in ("value", "layout_value")]
    assert layer.v is not None
    np.testing.assert_allclose(layer.v, np.concatenate(sides, axis=-1), atol=1e-6)
    assert layer.scale is None
