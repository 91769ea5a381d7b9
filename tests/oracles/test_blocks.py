"""Attention in bands and blocks: every pair of tokens has the weight that the model computes for it."""

import json
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import MORE, tiny_model
from conformance import opened, save, stacked
from odd_layouts import whole_map
from transformers import PreTrainedModel

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
    value = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    if model.config.is_encoder_decoder:
        value["decoder_input_ids"] = torch.tensor([[7, 8]])
    with torch.no_grad():
        return model(**value, output_attentions=True)


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


def test_a_band_that_is_wrong_is_noticed(tmp_path: Path) -> None:
    save(tiny_model("longformer"), tmp_path)
    source = opened(tmp_path, "0")
    for module in source.model.modules():
        if type(module).__name__ == "LongformerSelfAttention":
            # What the model computes stays as it is.
            module.forward = partial(type(module).forward, copy(module))
            module.one_sided_attn_window_size += 1
    layer = source.trace(TEXT).layers[0]
    assert layer.proof is not None
    assert layer.proof.max_abs_error > 0.1


@pytest.mark.parametrize("name", ["QuestionAnswering", "SequenceClassification"])
def test_a_task_that_makes_tokens_global_is_refused(name: str, tmp_path: Path) -> None:
    save(tiny_model("longformer"), tmp_path)
    assert any("no token sees the whole text" in note for note in opened(tmp_path, "0").notes)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": [f"LongformerFor{name}"]}))
    with pytest.raises(NotExposedError, match="has global tokens with matrices of their own"):
        opened(tmp_path, "0")


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
