"""Language models inside of other models: as the whole uses them, from the files that people have."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from architectures import random_model, tiny_config, tiny_whole, whole_class
from conformance import calmed, opened, save, stacked, words
from safetensors.torch import load_file, save_file

from attncli.errors import LoadError

IDS = torch.tensor([[23, 42, 17, 88, 23, 64, 31]])


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


@pytest.mark.parametrize("name", ["glmasr", "qwen2_audio", "voxtral", "granite_speech"])
def test_the_language_model_of_one_that_hears(name: str, tmp_path: Path) -> None:
    names = transformers.models.auto.modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES
    model = calmed(random_model(getattr(transformers, names[name])._from_config, tiny_config(name)))
    save(model, tmp_path)
    trace = opened(tmp_path, "all").trace(words(IDS) or "")
    assert trace.source.architecture == name
    with torch.no_grad():
        expected = model(input_ids=IDS, output_attentions=True).attentions
    for layer, theirs in zip(trace.layers, expected, strict=True):
        np.testing.assert_allclose(stacked(layer), theirs[0], atol=1e-5)


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


def test_the_whole_class_is_found_whatever_the_configuration_names(tmp_path: Path) -> None:
    save(calmed(tiny_whole("gemma3")), tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for architectures in ([], ["OfSomebody"], ["Gemma3ForCausalLM"]):
        path.write_text(json.dumps(config | {"architectures": architectures}))
        assert opened(tmp_path, "0").part.path == "model.language_model"
    assert whole_class("gemma3").__name__ in config["architectures"]
