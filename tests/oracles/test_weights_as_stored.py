"""Weights that are not what they seem: quantized, adapted, or of a model with other parts. Both engines judge alike."""

import ctypes
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from running import Ran, program
from safetensors.torch import load_file, save_file

Run = Callable[..., Ran]
Made = Callable[..., Path]
LOAD = 3
TEXT = "time flies like an arrow"
LINEAR = "model.layers.{}.self_attn.q_proj.weight"
ENGINES = ("native", "transformers")


@pytest.fixture
def made(tiny_llama: str, tmp_path: Path) -> Made:
    """Copy the tiny Llama, with other tensors or fields of its configuration."""

    def make(tensors: dict[str, torch.Tensor] | None = None, **fields: Any) -> Path:
        folder = Path(shutil.copytree(tiny_llama, tmp_path / "checkpoint", dirs_exist_ok=True))
        whole = load_file(folder / "model.safetensors") | (tensors or {})
        save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
        said = json.loads((folder / "config.json").read_text()) | fields
        (folder / "config.json").write_text(json.dumps(said))
        return folder

    return make


def in_fp8(tiny_llama: str, scale: str) -> dict[str, torch.Tensor]:
    """The tensors of the tiny Llama, all its projections in eight bits with a scale beside them."""
    found = {}
    for name, tensor in load_file(f"{tiny_llama}/model.safetensors").items():
        if name.endswith("_proj.weight"):
            step = tensor.abs().max() / 448
            found[name] = (tensor / step).to(torch.float8_e4m3fn)
            found[name.replace("weight", scale)] = step.reshape(1, 1) if scale.endswith("inv") else step
    return found


def refused(attn: Run, folder: Path, *words: str, engines: tuple[str, ...] = ENGINES) -> None:
    """Check that no command reads the weights of a checkpoint, in either engine, and that it is said why."""
    for engine in engines:
        ran = attn("inspect", TEXT, "-m", folder, "--engine", engine)
        one_refusal(ran, folder, *words)
    one_refusal(attn("check", TEXT, "-m", folder), folder, *words)
    assert attn("tokens", TEXT, "-m", folder).code == 0  # they are read from other files


def one_refusal(ran: Ran, folder: Path, *words: str) -> None:
    assert (ran.code, ran.out) == (LOAD, ""), ran
    assert ran.err.startswith("attn: ")
    assert ran.err.count("\n") == 1
    for word in (str(folder), *words):
        assert word in ran.err


# --- quantized ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["of_tomorrow", None])
def test_a_quantization_that_is_not_undone_is_named(method: str | None, attn: Run, made: Made, tiny_llama: str) -> None:
    said = {"quant_algo": "FP8"} | ({} if method is None else {"quant_method": method})
    folder = made(in_fp8(tiny_llama, "weight_scale"), quantization_config=said)
    refused(attn, folder, "quantized", method or "config.json does not say how")


NAMES = "qweight w_zeros g_idx k_scale SCB weight.absmax weight_packed weight_quantizer._amax weight:qdata codebooks"
PLACES = ("model.layers.0.self_attn.q_proj", "model.layers.0.mlp", "model.embed_tokens")


@pytest.mark.parametrize(("index", "name"), list(enumerate([*NAMES.split(), "lora_A.default.weight"])))
def test_a_tensor_that_tells_of_a_quantization_or_an_adapter_is_named_wherever_it_is_in_what_runs(
    index: int, name: str, attn: Run, made: Made
) -> None:
    tensor = f"{PLACES[index % 3]}.{name}"
    folder = made({tensor: torch.ones(2)})
    for engine in ENGINES:
        ran = attn("inspect", TEXT, "-m", folder, "--engine", engine)
        one_refusal(ran, folder, "are quantized, or hold an adapter, and nobody reads how", tensor)


def test_a_quantized_layer_that_does_not_run_is_not_complained_of(attn: Run, made: Made) -> None:
    folder = made({LINEAR.format(1) + "_scale": torch.ones(1)})
    for engine in ENGINES:
        assert attn("inspect", TEXT, "-m", folder, "--engine", engine).code == 0
        assert attn("inspect", TEXT, "-m", folder, "--engine", engine, "-l", "1").code == LOAD


STORED = {"int8": torch.int8, "float8": torch.float8_e4m3fn}


@pytest.mark.parametrize("stored", STORED)
def test_codes_without_a_scale_are_no_numbers(stored: str, attn: Run, made: Made, tiny_llama: str) -> None:
    for name in (LINEAR.format(0), "model.embed_tokens.weight"):
        tensor = load_file(f"{tiny_llama}/model.safetensors")[name]
        refused(attn, made({name: (tensor * 8).to(STORED[stored])}), "quantized", name, "its scale is missing")


def test_codes_in_a_layer_that_does_not_run_and_counters_are_not_complained_of(attn: Run, made: Made) -> None:
    codes = {LINEAR.format(1): torch.ones(24, 24, dtype=torch.int8), "model.position_ids": torch.arange(9)}
    for engine in ENGINES:
        ran = attn("inspect", TEXT, "-m", made(codes), "--engine", engine)
        assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize(
    ("weights", "scales"), [("", "model."), ("model.", ""), ("model.", "base_model.model.model."), ("", "transformer.")]
)
def test_a_scale_is_found_whatever_its_name_begins_with(
    weights: str, scales: str, attn: Run, made: Made, tiny_llama: str
) -> None:
    folder = made()
    whole = load_file(folder / "model.safetensors")
    whole = {name.replace("model.", weights, 1): tensor for name, tensor in whole.items()}
    name = f"{scales}layers.0.self_attn.q_proj.weight_scale"
    save_file(whole | {name: torch.ones(1)}, folder / "model.safetensors", metadata={"format": "pt"})
    for engine in ENGINES:
        one_refusal(attn("inspect", TEXT, "-m", folder, "--engine", engine), folder, "quantized", name)


def test_a_quantization_that_is_a_text_is_said_alike_by_both_engines(attn: Run, made: Made) -> None:
    folder = made(quantization_config="fp8")
    for engine in ENGINES:
        ran = attn("inspect", TEXT, "-m", folder, "--engine", engine)
        one_refusal(ran, folder, "quantized, and its config.json does not say how")


@pytest.mark.parametrize("count", [0, 100_000])
def test_layers_that_no_model_has_are_refused_before_they_are_built(count: int, attn: Run, made: Made) -> None:
    folder = made(num_hidden_layers=count)
    for command in (["inspect"], ["inspect", "--engine", "transformers"], ["check"]):
        ran = attn(*command, TEXT, "-m", folder)
        assert (ran.code, ran.out) == (5, "")
        assert ran.err == f"attn: {folder} claims to have {count} layers; expected 1 to 1000\n"
    assert attn("inspect", TEXT, "-m", folder, "--engine", "native").code == 4


# --- other tensors that the model does not read -------------------------------------------------------------


USUAL = {
    "score.weight": (2, 24),
    "model.pooler.dense.weight": (24, 24),
    "model.layers.0.self_attn.rotary_emb.inv_freq": (2,),
    "model.layers.0.self_attn.bias": (1, 1, 32, 32),
    "model.layers.0.self_attn.masked_bias": (),
    "model.layers.3.self_attn.q_proj.weight": (24, 24),  # a layer that predicts several tokens stands after the last
    "model.layers.3.self_attn.q_proj.weight_scale": (),
    "model.mtp.0.weight": (24,),
    "vision_tower.layers.0.self_attn.q_proj.weight": (24, 24),
    "vision_tower.layers.0.self_attn.q_proj.weight_scale": (),
    "lm_head.weight_scale": (),
}


@pytest.mark.parametrize("layers", ["0", "all"])
@pytest.mark.parametrize("engine", ENGINES)
def test_heads_towers_buffers_and_layers_that_do_not_run_are_usual(
    engine: str, layers: str, attn: Run, made: Made
) -> None:
    folder = made({name: torch.ones(shape) for name, shape in USUAL.items()})
    ran = attn("inspect", TEXT, "-m", folder, "-l", layers, "--engine", engine)
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_tensor_of_a_layer_that_runs_which_the_model_does_not_read_is_warned_of(
    engine: str, attn: Run, made: Made, tiny_llama: str
) -> None:
    biases = {LINEAR.format(layer).replace("weight", "bias"): torch.ones(24) for layer in (0, 1, 2)}
    folder = made(biases)
    for arguments, more in ((("-l", "0"), ""), (("-l", "all", "-F", "tsv"), " and 2 more")):
        ran = attn("inspect", TEXT, "-m", folder, "--engine", engine, *arguments)
        plain = attn("inspect", TEXT, "-m", tiny_llama, "--engine", engine, *arguments)
        assert ran.code == 0
        assert ran.out.replace(str(folder), tiny_llama) == plain.out
        assert ran.err == (
            f"attn: warning: the weights of {folder} have tensors in layers that run which its model does not read "
            f"(model.layers.0.self_attn.q_proj.bias{more}); check that the files belong to this config.json\n"
        )


# --- files that may not be opened ---------------------------------------------------------------------------


def without_the_rights_of_root() -> None:
    """Let the program that is started read what its files' modes say, whoever runs the tests."""
    override, search, drop_from_bounds = 1, 2, 24
    for capability in (override, search):
        ctypes.CDLL(None).prctl(drop_from_bounds, capability, 0, 0, 0)


def test_weights_that_may_not_be_read_are_not_said_to_be_missing(made: Made) -> None:
    folder = made()
    (folder / "model.safetensors").chmod(0)
    ran = program("inspect", TEXT, "-m", folder, preexec_fn=without_the_rights_of_root)
    assert (ran.returncode, ran.stdout) == (LOAD, "")
    assert ran.stderr == f"attn: the weights {folder / 'model.safetensors'} cannot be read: Permission denied\n"
    os.chmod(folder / "model.safetensors", 0o600)
