"""Ports with planted faults: `attn diff --first` names the layer, the stage and the cause with its value.

The ports are plain NumPy, see tests/helpers/faults.py. Right ones, also in 16 bits, differ by rounding only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faults
import numpy as np
import pytest
import torch
from architectures import random_model, tiny_config
from conformance import calmed, save_for_auto
from faults import FAULTS, FOLDERS, IDS, TEXT, Fault, Port
from gguf_files import Kind, write_gguf
from running import Run, program
from safetensors.numpy import load_file, save_file
from smollm import smollm_file
from transformers import AutoModel, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import attncli

FORMS = {"rotated q, k and v": "qkv", "hidden states alone": "input"}
SMALL = {name: fault for name, fault in FAULTS.items() if fault.model != "smollm"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Port]]:
    folder = tmp_path_factory.mktemp("ports")
    saved = {"normed": faults.save_normed(folder / "normed"), "biased": faults.save_biased(folder / "biased")}
    return {name: (path, Port.of(path)) for name, path in saved.items()}


def hits(parting: Any, fault: Fault) -> tuple[bool, bool, bool]:
    """Return whether the layer, the stage and the cause are right."""
    cause = parting["cause"] or {"name": "", "b": "", "a": ""}
    words = f"{cause['name']} {cause['b']} instead of {cause['a']}"
    is_named = bool(re.search(fault.words, words, re.IGNORECASE))
    return parting["layers"][0] == fault.first, bool(re.search(fault.stage, parting["stage"])), is_named


@pytest.mark.parametrize("model", ["normed", "biased"])
def test_the_right_port_is_that_of_transformers(models: Any, model: str) -> None:
    folder, port = models[model]
    original = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype="float32")
    with torch.no_grad():
        states = original(torch.tensor([IDS]), output_hidden_states=True).hidden_states
    for captured, expected in zip(port.run(IDS, port.right)[:-1], states, strict=False):
        np.testing.assert_allclose(captured["input"], expected[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", SMALL)
def test_a_fault_is_found_and_named(attn: Run, models: Any, tmp_path: Path, name: str, form: str) -> None:
    fault = SMALL[name]
    shows = fault.states if FORMS[form] == "input" else "cause"
    folder, port = models[fault.model]
    layers, ids = fault.run(port, IDS)
    capture = faults.write_capture(tmp_path / "port.safetensors", layers, ids, FORMS[form])
    ran = attn("diff", "--first", TEXT, "-m", folder, "--from", capture, "-F", "json")
    assert ran.code == (0 if shows == "nothing" else 1), (ran.out, ran.err)
    if shows == "layer":  # and no name that is not proved
        (parting,) = ran.json["partings"]
        assert (parting["layers"], parting["cause"]) == ([fault.first], None)
    elif shows == "cause":
        assert [hits(parting, fault) for parting in ran.json["partings"]] == [(True, True, True)], ran.json["partings"]


@pytest.mark.parametrize("name", ["window off by one", "documents", "scale", "softcap"])
def test_a_fault_of_a_long_text_is_named_from_some_of_its_tokens(
    attn: Run, models: Any, tmp_path: Path, name: str
) -> None:
    fault = SMALL[name]
    folder, port = models[fault.model]
    layers, ids = fault.run(port, IDS * 4)
    capture = faults.write_capture(tmp_path / "port.safetensors", layers, ids, "input")
    ran = attn("diff", "--first", "-m", folder, "--from", capture, "-F", "json")
    assert [hits(parting, fault) for parting in ran.json["partings"]] == [(True, True, True)], ran.json["partings"]


@pytest.mark.parametrize("model", ["normed", "biased"])
def test_hidden_states_of_the_layer_behind_are_named(attn: Run, models: Any, tmp_path: Path, model: str) -> None:
    folder, port = models[model]
    capture = faults.write_capture(tmp_path / "port.safetensors", port.run(IDS, port.right)[1:], IDS, "input")
    ran = attn("diff", "--first", "-m", folder, "--from", capture, "-F", "json")
    (parting,) = ran.json["partings"]
    assert {**parting["cause"], "undone": 0} == {
        "name": "hidden states", "b": "behind each layer", "a": "before it", "undone": 0,
    }  # fmt: skip
    assert parting["layers"] == [0, 1, 2]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_fault_of_a_folder_is_found_and_named(attn: Run, models: Any, tmp_path: Path, name: str) -> None:
    fault, edit = FOLDERS[name]
    folder = models[fault.model][0] if fault.model in models else faults.save_tiny(fault.model, tmp_path / "model")
    other = faults.edited(folder, tmp_path / "other", edit)
    ran = attn("diff", "--first", TEXT, "-m", folder, "-m", other, "-F", "json")
    assert ran.code == 1, (ran.out, ran.err)
    assert hits(ran.json["partings"][0], fault) == (True, True, True), ran.json["partings"]


def test_a_text_may_be_too_short_for_a_window(attn: Run, models: Any, tmp_path: Path) -> None:
    folder = models["normed"][0]
    other = faults.edited(folder, tmp_path / "other", faults.sets(sliding_window=6))
    ran = attn("diff", "--first", "w5 w6 w7 w8", "-m", folder, "-m", other)
    assert (ran.code, ran.out.count("The text of 4 tokens does not show the window of")) == (0, 2)


REAL = "The quick brown fox jumps over the lazy dog and then it sleeps"


@pytest.fixture(scope="module")
def smollm() -> tuple[Port, list[int]]:
    return faults.smollm(), attncli.tokenize(REAL, str(smollm_file())).tokens.ids


def compared(path: Path) -> Any:
    """Compare a port of SmolLM2 in a process of its own, where types are not checked at every call."""
    return json.loads(program("diff", "--first", REAL, "-m", smollm_file(), "--from", path, "-F", "json").stdout)


@pytest.mark.parametrize(("name", "form"), [("base", "qkv"), ("llama3", "input"), ("yarn", "qkv")])
def test_a_fault_of_a_real_model_is_found_and_named(smollm: Any, tmp_path: Path, name: str, form: str) -> None:
    layers, ids = FAULTS[name].run(*smollm)
    (parting,) = compared(faults.write_capture(tmp_path / "port.safetensors", layers, ids, form))["partings"]
    assert (hits(parting, FAULTS[name]), parting["layers"]) == ((True, True, True), list(range(30)))


def test_the_right_port_of_a_real_model_agrees(smollm: Any, tmp_path: Path) -> None:
    port, ids = smollm
    path = faults.write_capture(tmp_path / "port.safetensors", port.run(ids, port.right), ids, "input")
    assert compared(path)["agrees"]


PAIRS = [
    ("base of a layer", "no window"),
    ("no bias", "softcap of layer 2"),
    ("partial", "documents"),
    ("softcap", "documents"),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("first", "second"), PAIRS, ids=lambda name: name)
def test_with_the_first_fault_undone_the_second_is_found(
    attn: Run, models: Any, tmp_path: Path, first: str, second: str, form: str
) -> None:
    folder, port = models[FAULTS[first].model]
    layers, ids = FAULTS[first].run(port, IDS, [FAULTS[second]])
    capture = faults.write_capture(tmp_path / "port.safetensors", layers, ids, FORMS[form])
    ran = attn("diff", "--first", TEXT, "-m", folder, "--from", capture, "-F", "json")
    both = zip(ran.json["partings"], (FAULTS[first], FAULTS[second]), strict=True)
    assert [hits(*each) for each in both] == [(True, True, True)] * 2, ran.json["partings"]


TYPES: dict[str, Callable[[Any], Any]] = {
    "float32": np.float32, "bfloat16": faults.bfloat16, "float16": faults.float16,
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("model", ["normed", "biased"])
def test_rounding_is_no_fault(attn: Run, models: Any, tmp_path: Path, model: str, dtype: str, form: str) -> None:
    folder, port = models[model]
    layers = port.run(IDS, port.right, TYPES[dtype])
    capture = faults.write_capture(tmp_path / "port.safetensors", layers, IDS, FORMS[form], dtype=dtype)
    ran = attn("diff", "--first", TEXT, "-m", folder, "--from", capture, "-F", "json")
    agrees(ran)
    assert ran.json["dtype"] == dtype


# --- twins that are right -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = LlamaConfig(
        vocab_size=128, hidden_size=256, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, initializer_range=0.05,
    )  # fmt: skip
    torch.manual_seed(0)
    return save_for_auto(LlamaForCausalLM(config), tmp_path_factory.mktemp("llama"))


def agrees(ran: Any) -> None:
    """Check that rounding explains every difference."""
    assert (ran.code, ran.json["agrees"]) == (0, True), (ran.out, ran.err)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_a_quantized_file_agrees_with_its_original(attn: Run, llama: Path, tmp_path: Path, kind: str) -> None:
    fields = {
        "context_length": 64, "embedding_length": 256, "block_count": 3, "feed_forward_length": 256,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": 64, "rope.freq_base": 10000.0,
    }  # fmt: skip
    write_gguf(tmp_path / "q.gguf", "llama", load_file(llama / "model.safetensors"), fields, lambda _: None, Kind[kind])
    ids = " ".join(map(str, IDS))
    agrees(attn("diff", "--first", "--ids", ids, "-m", llama, "-m", tmp_path / "q.gguf", "-F", "json"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_of_16_bits_agree_with_their_original(attn: Run, llama: Path, tmp_path: Path, dtype: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(llama, dtype=dtype)
    other = save_for_auto(model, tmp_path)
    agrees(attn("diff", "--first", TEXT, "-m", llama, "-m", other, "-F", "json"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_transformers_agrees_with_the_native_engine(attn: Run, models: Any, tmp_path: Path, dtype: str) -> None:
    for folder, _ in models.values():
        trace = tmp_path / "trace.safetensors"
        how = ("--engine", "transformers", "--dtype", dtype, "--layer", "all", "--save", trace)
        assert attn("inspect", TEXT, "-m", folder, *how).code == 0
        agrees(attn("diff", "--first", TEXT, "-m", folder, "--from", trace, "-F", "json"))


ARCHITECTURES = (
    "llama", "mistral", "qwen3", "gemma", "gemma2", "gemma3_text", "gpt2", "gptj", "phi", "phi3", "opt", "bloom",
    "falcon", "mpt", "cohere", "olmo2", "granite", "starcoder2", "stablelm", "gpt_oss", "glm4", "smollm3", "bert",
)  # fmt: skip


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_agrees_with_itself_in_16_bits(attn: Run, tmp_path: Path, name: str) -> None:
    build = AutoModel if name == "bert" else AutoModelForCausalLM
    folder = save_for_auto(calmed(random_model(build.from_config, tiny_config(name))), tmp_path / "model")
    trace, text = tmp_path / "trace.safetensors", " ".join(TEXT.split()[:9])
    how = ("--engine", "transformers", "--dtype", "bfloat16", "--layer", "all", "--save", trace)
    assert attn("inspect", text, "-m", folder, *how).code == 0
    agrees(attn("diff", "--first", text, "-m", folder, "--from", trace, "-F", "json"))


def test_a_cache_and_a_batch_agree_with_a_row_alone(attn: Run, llama: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(llama, dtype="float32")
    steps: dict[str, Any] = {}
    cache = None
    with torch.no_grad():
        for step, ids in enumerate((IDS[:9], *([id_] for id_ in IDS[9:]))):
            made = model(torch.tensor([ids]), past_key_values=cache, use_cache=True, output_hidden_states=True)
            cache = made.past_key_values
            steps |= {f"layers.{i}.input.{step}": x[0].numpy() for i, x in enumerate(made.hidden_states[:-1])}
            steps[f"tokens.{step}"] = np.array(ids)
        rows = torch.tensor([IDS, [*IDS[:9], 1, 1, 1, 1, 1]])
        batch = model(rows, attention_mask=(rows != 1).long(), output_hidden_states=True).hidden_states
    inputs = {f"layers.{i}.input": x[0].numpy() for i, x in enumerate(batch[:-1])} | {"tokens": np.array(IDS)}
    for tensors in (steps, inputs):
        save_file(tensors, tmp_path / "run.safetensors", metadata={"format": "attncli.capture/1"})
        agrees(attn("diff", "--first", TEXT, "-m", llama, "--from", tmp_path / "run.safetensors", "-F", "json"))
