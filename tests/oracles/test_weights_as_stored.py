"""Weights that are not what they seem: quantized, adapted, or of a model with other parts. Both engines judge alike."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused
from running import Run
from safetensors.torch import load_file, save_file

from attncli.checkpoints.tensors import check_unread
from attncli.errors import LoadError

Made = Callable[..., Path]
LOAD = 3
TEXT = "time flies like an arrow"
QUERY = "model.layers.0.self_attn.q_proj"
ENGINES = ("native", "transformers")

# The parts of a decoder that run, where the first of three layers was asked for.
RUNNING = ["model", "model.layers", "model.layers.0", QUERY, "model.layers.0.mlp", "model.embed_tokens"]
REFUSED = """
    model.layers.0.self_attn.q_proj.qweight model.layers.0.mlp.w_zeros model.embed_tokens.g_idx
    model.layers.0.self_attn.q_proj.k_scale model.layers.0.mlp.SCB model.embed_tokens.weight.absmax
    model.layers.0.self_attn.q_proj.weight_packed model.layers.0.mlp.weight_quantizer._amax
    model.embed_tokens.weight:qdata model.layers.0.mlp.codebooks model.layers.0.self_attn.q_proj.lora_A.default.weight
    layers.0.self_attn.q_proj.weight_scale base_model.model.model.layers.0.self_attn.q_proj.weight_scale
    transformer.layers.0.self_attn.q_proj.weight_scale
"""
USUAL = """
    score.weight model.pooler.dense.weight model.layers.0.self_attn.rotary_emb.inv_freq model.layers.0.self_attn.bias
    model.layers.0.self_attn.masked_bias model.position_ids model.layers.1.self_attn.q_proj.weight_scale
    model.layers.3.self_attn.q_proj.weight model.mtp.0.weight lm_head.weight_scale
    vision_tower.layers.0.self_attn.q_proj.weight vision_tower.layers.0.self_attn.q_proj.weight_scale
"""


def test_what_tells_of_a_quantization_or_an_adapter_is_named_and_what_does_not_run_is_usual() -> None:
    for tensor in REFUSED.split():
        with pytest.raises(LoadError, match=f"are quantized in an unknown way, or hold an adapter \\({tensor}\\)"):
            check_unread("it", [tensor], RUNNING, "model.", is_undone=False)
    assert check_unread("it", USUAL.split(), RUNNING, "model.", is_undone=False) == ()
    # Beside weights that are undone, the scale of the hidden states is no reason to refuse them.
    assert len(check_unread("it", [f"{QUERY}.input_scale"], RUNNING, "model.", is_undone=True)) == 1


@pytest.fixture
def made(tiny_llama: str, tmp_path: Path) -> Made:
    def make(tensors: dict[str, torch.Tensor] | None = None, **fields: Any) -> Path:
        folder = Path(shutil.copytree(tiny_llama, tmp_path / "checkpoint", dirs_exist_ok=True))
        whole = load_file(folder / "model.safetensors") | (tensors or {})
        save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((folder / "config.json").read_text()) | fields
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return make


def refused_by_all(attn: Run, folder: Path, *words: str) -> None:
    for line in (["inspect", "--engine", "native"], ["inspect", "--engine", "transformers"], ["check"]):
        ran = attn(*line, TEXT, "-m", folder)
        refused(ran, LOAD, str(folder), *words)
    assert attn("tokens", TEXT, "-m", folder).code == 0  # they are read from other files


def test_a_quantization_that_is_not_undone_is_named(attn: Run, made: Made) -> None:
    refused_by_all(attn, made(quantization_config={"quant_algo": "FP8"}), "and its config.json does not say how")
    shutil.rmtree(made())
    refused_by_all(attn, made({f"{QUERY}.weight_scale_inv": torch.ones(1)}), "quantized", f"{QUERY}.weight_scale_inv")
    for name, kind in ((f"{QUERY}.weight", torch.int8), ("model.embed_tokens.weight", torch.float8_e4m3fn)):
        tensor = load_file(made() / "model.safetensors")[name]
        refused_by_all(attn, made({name: (tensor * 8).to(kind)}), "quantized", name, "its scale is missing")
        shutil.rmtree(made())


@pytest.mark.parametrize("engine", ENGINES)
def test_an_unread_tensor_of_a_running_layer_is_warned_of(engine: str, attn: Run, made: Made, tiny_llama: str) -> None:
    folder = made({f"{QUERY.replace('0', layer)}.bias": torch.ones(24) for layer in "012"})
    for arguments, more in ((("-l", "0"), ""), (("-l", "all", "-F", "tsv"), " and 2 more")):
        ran = attn("inspect", TEXT, "-m", folder, "--engine", engine, *arguments)
        plain = attn("inspect", TEXT, "-m", tiny_llama, "--engine", engine, *arguments)
        assert ran.code == 0
        assert ran.out.replace(folder.name, Path(tiny_llama).name) == plain.out
        assert ran.err == (
            f"attn: warning: the weights of {folder} have tensors in layers that run which its model does not read "
            f"({QUERY}.bias{more}); check that the files belong to this config.json\n"
        )


@pytest.mark.parametrize("count", [0, 100_000])
def test_layers_that_no_model_has_are_refused_before_they_are_built(count: int, attn: Run, made: Made) -> None:
    folder = made(num_hidden_layers=count)
    for command in (["inspect"], ["inspect", "--engine", "transformers"], ["check"]):
        ran = attn(*command, TEXT, "-m", folder)
        refused(ran, 5, f"attn: {folder} claims to have {count} layers; expected 1 to 1000\n")
    assert attn("inspect", TEXT, "-m", folder, "--engine", "native").code == 4
