"""Language models inside of others, in NumPy: what transformers computes, or declined."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import tiny_config, tiny_whole
from conformance import calmed, save_for_auto
from native_variants import compared
from safetensors.torch import load_file, save_file
from tiny_tokenizers import STRINGS, save_tokenizer
from transformers import CONFIG_MAPPING, AutoTokenizer

from attncli.checkpoints.checkpoint_folder import CheckpointFolder
from attncli.checkpoints.config_reader import ConfigReader, UnsupportedError
from attncli.encoding.fast_tokenizer import load_tokenizer
from attncli.engines import open_source
from attncli.engines.numpy.families import TOWERS, model_spec
from attncli.errors import LoadError, NotExposedError

TEXT = "w23 w42 w17 w88 w23 w64 w31"
EVERY = [(name, text) for name, tower in TOWERS.items() for text in tower.texts]


def saved(name: str, folder: Path) -> Path:
    return save_for_auto(calmed(tiny_whole(name)), folder)


def agree(folder: Path) -> None:
    """Check that both engines give the same trace of a text."""
    sources = [open_source(model=str(folder), layer="all", special=False, engine=each) for each in ENGINES]
    ours, theirs = (source.trace(TEXT) for source in sources)
    assert compared(folder.name, list(ours.layers), theirs.layers).is_exact
    assert ours.notes == theirs.notes
    assert (ours.source.architecture, ours.source.notes) == (theirs.source.architecture, theirs.source.notes)
    assert ours.source.details == {"engine": "native", "tower": theirs.source.details["tower"]}


ENGINES = ("native", "transformers")


@pytest.mark.parametrize("name", TOWERS)
def test_a_tower_is_what_transformers_computes(name: str, tmp_path: Path) -> None:
    agree(saved(name, tmp_path))


def changed(folder: Path, **changes: Any) -> None:
    """Change fields of the language model's configuration."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["text_config"] |= changes
    path.write_text(json.dumps(config))


SECTIONS = {"mrope_section": [2, 1, 1], "type": "mrope"}


@pytest.mark.parametrize(("name", "changes"), [
    ("qwen2_vl", {"rope_scaling": SECTIONS, "rope_theta": 300.0, "rope_parameters": None}),
    ("qwen2_5_vl", {"rope_parameters": {"mrope_section": [1, 1, 2], "rope_type": "default"}}),
    ("qwen2_vl", {"use_sliding_window": False, "layer_types": None}),
    ("qwen2_vl", {"layer_types": None, "max_window_layers": 2}),
    ("qwen3_vl", {"rope_parameters": {"mrope_interleaved": True, "mrope_section": [2, 1, 1], "rope_theta": 90.0}}),
    ("mistral3", {"sliding_window": None}),
    ("gemma3", {"query_pre_attn_scalar": 13, "sliding_window": 2}),
    ("llava", {"rope_parameters": {"rope_theta": 90.0, "rope_type": "linear", "factor": 3.0}}),
])  # fmt: skip
def test_fields_of_the_language_model_are_read(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    changed(saved(name, tmp_path), **changes)
    agree(tmp_path)


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl"])
def test_a_configuration_of_one_level_and_older_names_of_tensors(name: str, tmp_path: Path) -> None:
    saved(name, tmp_path)
    path, file = tmp_path / "config.json", tmp_path / "model.safetensors"
    config = json.loads(path.read_text())
    inner = config.pop("text_config")
    inner["rope_scaling"] = SECTIONS
    inner["rope_theta"] = inner.pop("rope_parameters")["rope_theta"]
    path.write_text(json.dumps(inner | config))
    names = {r"^model\.language_model\.": "model.", r"^model\.visual\.": "visual."}
    rename(file, names)
    agree(tmp_path)


@pytest.mark.parametrize("name", ["gemma3", "llava", "mistral3"])
def test_older_and_newer_names_of_tensors(name: str, tmp_path: Path) -> None:
    saved(name, tmp_path)
    for pattern, other in ((r"^language_model\.model\.", "model.language_model."), (LATER, "language_model.model.")):
        rename(tmp_path / "model.safetensors", {pattern: other})
        agree(tmp_path)


LATER = r"^model\.language_model\."


def rename(file: Path, names: dict[str, str]) -> None:
    tensors = load_file(file)
    for pattern, other in names.items():
        tensors = {re.sub(pattern, other, tensor): value for tensor, value in tensors.items()}
    save_file(tensors, file, {"format": "pt"})


@pytest.mark.parametrize(("name", "text"), EVERY)
def test_what_a_configuration_does_not_say_is_what_transformers_takes(name: str, text: str) -> None:
    short = {"model_type": name, "text_config": {"model_type": text}}
    settings = json.loads(CONFIG_MAPPING[name](text_config={"model_type": text}).to_json_string(use_diff=False))
    if name in ("qwen2_vl", "qwen2_5_vl"):  # transformers has no default for these
        for config in (short, settings):
            config["text_config"]["rope_parameters"] = {"mrope_section": [16, 24, 24], "rope_theta": 1e6}
    assert repr(model_spec(ConfigReader(short))) == repr(model_spec(ConfigReader(settings)))


@pytest.mark.parametrize(("name", "text"), EVERY)
def test_what_is_not_known_declines(name: str, text: str) -> None:
    config = {"model_type": name, "text_config": {"model_type": text}}
    model_spec(ConfigReader(config))
    for changes in (
        {"a_field_of_tomorrow": 1},
        {"quantization_config": {"bits": 4}},
        {"text_config": None, "hidden_size": "wide"},
        {"text_config": {"model_type": "bloom"}},
        {"text_config": {}},
    ):
        with pytest.raises(UnsupportedError):
            model_spec(ConfigReader(config | changes))
    for inner in ({"a_field_of_tomorrow": 1}, {"quantization_config": {"bits": 4}}, {"is_decoder": True}):
        with pytest.raises(UnsupportedError):
            model_spec(ConfigReader({"model_type": name, "text_config": {"model_type": text, **inner}}))


def test_a_rotation_that_is_not_known_declines() -> None:
    yarn = {"rope_type": "yarn", "factor": 2.0}
    for rope in (yarn, {"mrope_section": [1, 1]}, {"mrope_interleaved": 3}, {"mrope_section": 4}, {"of_tomorrow": 1}):
        inner = {"model_type": "qwen2_vl_text", "rope_parameters": {"rope_theta": 1e4, **rope}}
        with pytest.raises(UnsupportedError):
            model_spec(ConfigReader({"model_type": "qwen2_vl", "text_config": inner}))


def test_scales_beside_the_weights_of_the_tower_are_found_and_of_other_parts_are_not(tmp_path: Path) -> None:
    file = saved("gemma3", tmp_path) / "model.safetensors"
    tensors = load_file(file)
    own = next(name for name in tensors if "language_model" in name and "layers.0.self_attn.q_proj" in name)
    other = next(name for name in tensors if "vision" in name and "layers.0.self_attn.q_proj.weight" in name)
    save_file(tensors | {f"{other}_scale": torch.ones(1)}, file, {"format": "pt"})
    assert open_source(model=str(tmp_path), engine="native").trace(TEXT).source.notes == ()
    save_file(tensors | {f"{own}_scale": torch.ones(1)}, file, {"format": "pt"})
    with pytest.raises(LoadError, match="quantized"):
        open_source(model=str(tmp_path), engine="native")


def test_a_tower_of_another_family_is_left_to_transformers(tmp_path: Path) -> None:
    save_for_auto(calmed(tiny_whole("llama4")), tmp_path)
    with pytest.raises(NotExposedError, match="the architecture llama4 is not supported"):
        open_source(model=str(tmp_path), engine="native")
    assert open_source(model=str(tmp_path)).trace(TEXT).source.details["engine"] == "transformers"


@pytest.mark.parametrize("name", TOWERS)
@pytest.mark.parametrize("named", ["LlamaTokenizer", "Qwen2TokenizerFast", None])
def test_a_tokenizer_is_what_transformers_makes_of_it_or_declined(name: str, named: str | None, tmp_path: Path) -> None:
    family = {"gemma3": "gemma3_text", "qwen": "qwen2", "internvl": "qwen2"}
    kind = next((own for start, own in family.items() if name.startswith(start)), "llama")
    save_tokenizer(tmp_path, kind)
    tiny_config(name).save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    fields = {key: value for key, value in json.loads(path.read_text()).items() if key != "tokenizer_class"}
    path.write_text(json.dumps(fields if named is None else fields | {"tokenizer_class": named}))
    try:
        ours = load_tokenizer(str(tmp_path), CheckpointFolder(tmp_path), {"model_type": name})
    except UnsupportedError:
        return
    theirs = AutoTokenizer.from_pretrained(tmp_path, mistral_format=False)
    for text in list(STRINGS)[:60]:
        assert list(ours(text)["input_ids"]) == theirs(text)["input_ids"]
