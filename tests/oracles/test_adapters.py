"""Adapters as peft saves them, against the attention that peft's own model computes, merged and not merged."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from adapters import WHOLE, save_adapter, save_base
from peft import LoraConfig, PeftModel
from refusals import refused
from running import Run
from safetensors.torch import load_file, save_file

import attncli

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:peft.*")  # advice while adapters are made
TEXT = "time flies like an arrow"
IDS = [2, 3, 4, 5, 6]  # of that text

PARTS = {"llama": ["q_proj", "down_proj"], "gpt2": ["c_attn", "c_proj"], "bert": ["query", "key", "dense"]}


def lora(family: str, **options: Any) -> LoraConfig:
    return LoraConfig(**{"r": 4, "target_modules": PARTS[family]} | options)


CASES = {
    "llama, LoRA": ("llama", lora("llama")),
    "llama, all linear and a head": ("llama", lora("llama", target_modules=["q_proj", "lm_head"])),
    "gpt2, stabilized, with all biases": ("gpt2", lora("gpt2", use_rslora=True, bias="all")),
    "gpt2, a whole table": ("gpt2", lora("gpt2", modules_to_save=["wte"])),
    "bert, with biases": ("bert", lora("bert", bias="lora_only")),
    "bert, of a model without a head": ("bare bert", lora("bert")),
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    return cache(lambda family: save_base(family, tmp_path_factory.mktemp("base")))


def attentions(model: Any) -> list[np.ndarray[Any, Any]]:
    with torch.no_grad():
        found = model.eval()(input_ids=torch.tensor([IDS]), output_attentions=True).attentions
    return [layer[0].numpy() for layer in found]


def eager(family: str, base: str) -> Any:
    return WHOLE[family].from_pretrained(base, attn_implementation="eager")


def apart(folder: Path | str, expected: list[np.ndarray[Any, Any]], text: str = TEXT, **options: Any) -> float:
    """How far the weights that are shown are from those expected, by the size of the scores."""
    layers = attncli.inspect(text, model=str(folder), layer="all", **options).layers
    heads = [(expected[layer.layer][index], layer.head(index)) for layer in layers for index in range(layer.num_heads)]
    largest = max(1.0, *(float(np.abs(head.scores).max()) for _, head in heads))
    return max(float(np.abs(head.weights - known).max()) for known, head in heads) / largest


@pytest.mark.parametrize("case", CASES)
def test_an_adapter_has_the_weights_that_peft_computes(case: str, bases: Callable[[str], str], tmp_path: Path) -> None:
    family, config = CASES[case]
    base = bases(family.removeprefix("bare "))
    folder = save_adapter(family, base, config, tmp_path / "adapter")
    adapted = PeftModel.from_pretrained(eager(family, base), folder)
    unmerged = attentions(adapted)
    merged = attentions(adapted.merge_and_unload())
    plain = attentions(eager(family, base))
    assert max(float(np.abs(one - other).max()) for one, other in zip(plain, merged, strict=True)) > 1e-3
    for engine in ("native", "transformers"):
        assert apart(folder, unmerged, engine=engine) < 1e-6, engine
        assert apart(folder, merged, engine=engine) < 1e-6, engine


@pytest.fixture(scope="module")
def adapter(bases: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_adapter("llama", bases("llama"), lora("llama"), tmp_path_factory.mktemp("lora"))


def expected_of(base: str, adapter: str) -> list[np.ndarray[Any, Any]]:
    return attentions(PeftModel.from_pretrained(eager("llama", base), adapter))


def with_settings(adapter: str, folder: Path, **settings: Any) -> Path:
    shutil.copytree(adapter, folder)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return folder


def test_the_base_is_named_by_adapter_or_option(adapter: str, bases: Callable[[str], str], folder: Path) -> None:
    base = bases("llama")
    expected = expected_of(base, adapter)
    shutil.copytree(base, folder / "base")
    shutil.copytree(base, folder / "out" / "beside")
    for place, settings, options in (
        ("out/a", {"base_model_name_or_path": "base"}, {}),  # where the program runs, as for peft
        ("out/b", {"base_model_name_or_path": "../beside"}, {}),
        ("out/c", {"base_model_name_or_path": "/no/longer/there"}, {"base": "base"}),
        ("out/d", {"base_model_name_or_path": None}, {"base": str(folder / "base")}),
    ):
        found = with_settings(adapter, folder / place, **settings)
        for engine in ("native", "transformers"):
            assert apart(found, expected, engine=engine, **options) < 1e-6, place


def test_an_ambiguous_adapter_is_refused(adapter: str, bases: Callable[[str], str], tmp_path: Path, attn: Run) -> None:
    both = Path(shutil.copytree(bases("llama"), tmp_path / "both"))
    shutil.copytree(adapter, both, dirs_exist_ok=True)
    alone = with_settings(adapter, tmp_path / "alone")
    (alone / "adapter_model.safetensors").unlink()
    for folder, words in ((both, "a whole model and an adapter; move"), (alone, "without its weights, adapter_mod")):
        refused(attn("inspect", TEXT, "-m", folder), 3, words)
    assert apart(both, expected_of(bases("llama"), adapter), base=bases("llama")) < 1e-6


def test_a_base_in_a_pickle_is_read(adapter: str, bases: Callable[[str], str], tmp_path: Path, attn: Run) -> None:
    base = Path(shutil.copytree(bases("llama"), tmp_path / "base"))
    torch.save(load_file(base / "model.safetensors"), base / "pytorch_model.bin")
    (base / "model.safetensors").unlink()
    folder = with_settings(adapter, tmp_path / "adapter", base_model_name_or_path=str(base))
    refused(attn("inspect", TEXT, "-m", folder, "--engine", "native"), 4, "the weights of its base are in a pickle")
    assert apart(folder, expected_of(bases("llama"), adapter)) < 1e-6
    words = f"the pickle {base / 'pytorch_model.bin'} holds more than tensors, or is damaged; none of it was run"
    for held in ({"a": print}, {"a": torch.eye(3).to_sparse()}):
        torch.save(held, base / "pytorch_model.bin")
        refused(attn("inspect", TEXT, "-m", folder), 3, words)


@pytest.mark.parametrize(("settings", "words"), [
    ({"peft_type": "PREFIX_TUNING"}, "of the kind PREFIX_TUNING, and attn reads LoRA; give the base model alone"),
    ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "target_parameters, which attn ignores"),
    ({"init_lora_weights": "pissa"}, "sets init_lora_weights 'pissa'"),
    ({"r": 5}, "with tensors of another rank than its adapter_config.json gives"),
    ({"use_dora": True}, "sets use_dora, which attn ignores"), ({"lora_alpha": "much"}, "'much' for alpha"),
])  # fmt: skip
def test_settings_are_refused(settings: dict[str, Any], words: str, adapter: str, tmp_path: Path, attn: Run) -> None:
    folder = with_settings(adapter, tmp_path / "adapter", **settings)
    for engine in ("native", "transformers"):
        refused(attn("inspect", TEXT, "-m", folder, "--engine", engine), 3, words)


UNUSED = [
    ("layers.7.self_attn.q_proj.lora_", (4, 24), "layers.7.self_attn.q_proj.weight, which"),
    ("h.0.attn.c_attn.lora_", (4, 24), "which its base does not have"),
    ("layers.0.self_attn.q_proj.lora_", (4, 23), "tensors that do not fit the shape [24, 24]"),
    ("layers.0.self_attn.x_proj.weight", (4,), "which its base does not have"),
    ("embed_tokens.weight", (12, 24), "to one of shape [12, 24], where"),
    ("../layers.0.self_attn.q_proj.lora_", (4, 24), "a second time"),
]


@pytest.mark.parametrize(("name", "shape", "words"), UNUSED)
def test_no_tensor_of_an_adapter_is_left_unused(
    name: str, shape: tuple[int, ...], words: str, adapter: str, tmp_path: Path, attn: Run
) -> None:
    folder = with_settings(adapter, tmp_path / "adapter")
    tensors = load_file(folder / "adapter_model.safetensors")
    name = f"base_model.model.model.{name}".replace("model.../", "")  # as adapters of a model without its head have it
    if name.endswith("lora_"):
        tensors |= {f"{name}A.weight": torch.ones(shape), f"{name}B.weight": torch.ones(24, shape[0])}
    else:
        tensors[name] = torch.ones(shape)
    save_file(tensors, folder / "adapter_model.safetensors")
    for engine in ("native", "transformers"):
        refused(attn("inspect", TEXT, "-m", folder, "--engine", engine), 3, words)
