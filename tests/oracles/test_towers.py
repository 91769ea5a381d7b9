"""Language models inside of other models: as the whole uses them, from the files that people have."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from architectures import random_model, tiny_config, tiny_model, tiny_whole, whole_class
from conformance import calmed, opened, save, save_for_auto, stacked, words
from safetensors.torch import load_file, save_file

import attncli
from attncli.errors import LoadError, NotExposedError

IDS = torch.tensor([[23, 42, 17, 88, 23, 64, 31]])
Run = Callable[..., Any]


def test_weights_that_look_at_pictures_may_be_missing_and_those_of_the_tower_may_not(tmp_path: Path) -> None:
    save(calmed(tiny_whole("gemma3")), tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = {name: value for name, value in load_file(file).items() if "language_model" in name}
    save_file(tensors, file, {"format": "pt"})
    trace = opened(tmp_path, "all").trace("w7 w8")
    assert (trace.source.notes, trace.notes) == ((), ())
    lost = next(name for name in tensors if "layers.1.self_attn.q_proj" in name)
    save_file({name: value for name, value in tensors.items() if name != lost}, file, {"format": "pt"})
    with pytest.raises(LoadError, match=r"lack 1 of the model's tensors \(.*layers\.1\.self_attn\.q_proj"):
        opened(tmp_path, "all")


def test_scales_beside_the_weights_of_the_tower_are_found_and_of_other_parts_are_not(tmp_path: Path) -> None:
    save(calmed(tiny_whole("gemma3")), tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    own = next(name for name in tensors if "language_model" in name and "layers.0.self_attn.q_proj" in name)
    other = next(name for name in tensors if "vision" in name and "layers.0.self_attn.q_proj.weight" in name)
    save_file(tensors | {f"{other}_scale": torch.ones(1)}, file, {"format": "pt"})
    assert opened(tmp_path, "all").trace("w7 w8").source.notes == ()
    save_file(tensors | {f"{own}_scale": torch.ones(1)}, file, {"format": "pt"})
    with pytest.raises(LoadError, match="quantized"):
        opened(tmp_path, "all")


@pytest.mark.parametrize("name", ["altclip", "clip", "siglip", "siglip2"])
def test_the_text_tower_of_a_model_that_compares_pictures_and_texts(name: str, tmp_path: Path) -> None:
    model = calmed(random_model(transformers.AutoModel.from_config, tiny_config(name)))
    save(model, tmp_path)
    compare(model.get_submodule("text_model"), name, tmp_path)


@pytest.mark.parametrize("name", ["glmasr", "qwen2_audio", "voxtral", "granite_speech"])
def test_the_language_model_of_one_that_hears(name: str, tmp_path: Path) -> None:
    names = transformers.models.auto.modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES
    model = calmed(random_model(getattr(transformers, names[name])._from_config, tiny_config(name)))
    save(model, tmp_path)
    compare(model, name, tmp_path)


def compare(model: Any, name: str, folder: Path) -> None:
    """Check that every layer shows what a model returns of the text alone."""
    trace = opened(folder, "all").trace(words(IDS) or "")
    assert trace.source.architecture == name
    with torch.no_grad():
        expected = model(input_ids=IDS, output_attentions=True).attentions
    for layer, theirs in zip(trace.layers, expected, strict=True):
        np.testing.assert_allclose(stacked(layer), theirs[0], atol=1e-5)


def test_a_decoder_of_blip_is_causal_and_its_encoder_of_texts_is_not(tmp_path: Path) -> None:
    save(calmed(tiny_whole("blip")), tmp_path / "decoder")
    model = calmed(random_model(transformers.BlipModel._from_config, tiny_config("blip")))
    save(model, tmp_path / "encoder")
    masks = [str(opened(tmp_path / each, "0").trace("w7 w8 w9").layers[0].mask) for each in ("decoder", "encoder")]
    assert masks == ["causal", "full"]


@pytest.mark.parametrize("name", ["gemma3", "llava", "mllama", "qwen3_vl"])
def test_a_tower_writes_what_the_whole_writes(name: str, tmp_path: Path) -> None:
    model = calmed(tiny_whole(name))
    save(model, tmp_path)
    ids = IDS
    with torch.no_grad():
        for _ in range(3):
            likeliest = model(input_ids=ids, use_cache=False).logits[:, -1:].argmax(-1)
            ids = torch.cat([ids, likeliest], dim=1)
    checkpoint = opened(tmp_path, "0", generate=3)
    assert checkpoint.trace(words(IDS) or "").query_tokens.ids == ids[0].tolist()
    # Nothing that looks at pictures was read to write a text.
    names = [tensor for tensor, _ in checkpoint.whole.named_parameters()]
    assert not any("vision" in tensor or "visual" in tensor for tensor in names)


def test_a_model_that_compares_writes_no_text(tmp_path: Path) -> None:
    save(calmed(tiny_model("clip")), tmp_path)
    with pytest.raises(NotExposedError, match="generates no text"):
        opened(tmp_path, "0", generate=3)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Qwen2.5-VL with a tokenizer that the program loads."""
    return str(save_for_auto(calmed(tiny_whole("qwen2_5_vl")), tmp_path_factory.mktemp("qwen")))


def test_a_tower_is_left_to_transformers(qwen: str) -> None:
    assert attncli.inspect("w7 w8", qwen).source.details["engine"] == "transformers"
    with pytest.raises(NotExposedError, match="the architecture qwen2_5_vl is not supported"):
        attncli.inspect("w7 w8", qwen, engine="native")


def test_the_whole_class_is_found_whatever_the_configuration_names(tmp_path: Path) -> None:
    save(calmed(tiny_whole("gemma3")), tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for architectures in ([], ["OfSomebody"], ["Gemma3ForCausalLM"]):
        path.write_text(json.dumps(config | {"architectures": architectures}))
        assert opened(tmp_path, "0").part.path == "model.language_model"
    assert whole_class("gemma3").__name__ in config["architectures"]
