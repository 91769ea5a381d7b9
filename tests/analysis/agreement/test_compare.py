"""What is rounding and what is not: two runs that compute the same, and runs with something wrong in them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import tiny_model
from conformance import save_for_auto
from gguf_files import Kind, write_gguf
from native_variants import save_whole
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch_file

from attncli.analysis.agreement.compare import Agreement, compare
from attncli.analysis.runs import Side, captured_side, side_of, traced_side
from attncli.engines import open_source
from attncli.errors import InputError
from attncli.trace.capture import Capture, LayerCapture
from attncli.trace.tokens import Tokens
from attncli.trace.trace import Trace

IDS = "5 9 3 17 22 8 31 4 12 6 40"
TEXTS = "w5 w9 w3 w17 w2", "w4 w1 w8"
SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 3}


def run_of(folder: Path, **options: Any) -> Side:
    return side_of(open_source(str(folder), layer="all", ids=True, **options), str(folder), IDS, None)


def causes(result: Agreement) -> list[str]:
    every = [(parting, parting.cause) for parting in result.partings]
    return [f"{parting.stage}: {cause and f'{cause.name} {cause.b}/{cause.a}'}" for parting, cause in every]


def edited(
    folder: Path, target: Path, config: dict[str, Any], change: Callable[[str, np.ndarray], np.ndarray] | None = None
) -> Path:
    shutil.copytree(folder, target)
    values = json.loads((folder / "config.json").read_text()) | config
    (target / "config.json").write_text(json.dumps(values))
    if change is not None:
        tensors = load_file(folder / "model.safetensors")
        save_file({name: change(name, array) for name, array in tensors.items()}, target / "model.safetensors")
    return target


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    save_whole("llama", folder, **SIZES)
    return folder


# --- only rounding ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "gpt_neox", "llama", "mistral", "qwen3", "gemma2", "gemma3_text"])
def test_transformers_agrees_with_the_native_engine(family: str, dtype: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_whole(family, tmp_path)
    result = compare(run_of(tmp_path), run_of(tmp_path, engine="transformers", dtype=dtype))
    assert (causes(result), result.dtype) == ([], dtype)
    largest = max(cell.difference for row in result.rows.values() for cell in row.values())
    assert 0 < largest < {"float32": 5e-6, "bfloat16": 0.05, "float16": 0.01}[dtype]


@pytest.mark.parametrize(
    "family", ["opt", "bloom", "t5", "gpt_oss", "falcon", "phi", "mpt", "gptj", "stablelm", "olmo2", "albert", "glm"]
)
def test_architectures_of_transformers_agree_with_themselves(family: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_for_auto(tiny_model(family), tmp_path)
    whole, half = (
        open_source(str(tmp_path), layer="all", engine="transformers", dtype=dtype)  # type: ignore[arg-type]
        for dtype in ("float32", "bfloat16")
    )
    alone, batched, rounded = whole.trace(TEXTS[0]), next(iter(whole.traces(TEXTS))), half.trace(TEXTS[0])
    result = compare(traced_side(alone, "alone"), traced_side(batched, "in a batch"))
    assert (causes(result), any("encoder alone" in note for note in result.notes)) == ([], family == "t5")
    assert causes(compare(traced_side(alone, "float32"), traced_side(rounded, "bfloat16"))) == []


def test_rounding_that_chooses_other_experts_ends_the_comparison(tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_for_auto(tiny_model("mixtral"), tmp_path)
    source = open_source(str(tmp_path), layer="all", engine="transformers")
    trace = source.trace("w5 w9 w3 w17 w2")
    q, k, v = (array.copy() for array in (trace.layers[1].q, trace.layers[1].k, trace.layers[1].v))  # type: ignore[union-attr]
    for array in (q, k, v):
        array[:, 3] *= -1  # as behind another expert
    other = traced_side(_with_layer(trace, 1, q=q, k=k, v=v), "B")
    assert causes(compare(traced_side(trace, "A"), other)) == ["input: None"]
    result = compare(traced_side(trace, "A"), replace(other, dtype="bfloat16"))
    sentence = "Layers 1-2 are not compared: rounding may give other experts to the tokens at 3."
    assert (result.agrees, result.not_compared, [*result.rows]) == (True, [sentence], [0])


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_weights_that_are_rounded_agree_with_the_originals(kind: str, llama: Path, tmp_path: Path) -> None:
    fields = {
        "context_length": 40, "embedding_length": 64, "block_count": 3, "feed_forward_length": 64,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-2,
        "attention.key_length": 16, "attention.value_length": 16,
    }  # fmt: skip
    folder, path = tmp_path / "folder", tmp_path / "model.gguf"
    torch.manual_seed(0)
    save_whole("llama", folder, **SIZES, intermediate_size=64, rms_norm_eps=1e-2, hidden_act="silu")
    stored = load_file(folder / "model.safetensors")
    tensors = {name if name.startswith("model.") else f"model.{name}": array for name, array in stored.items()}
    write_gguf(path, "llama", tensors, fields, lambda writer: None, Kind[kind])
    result = compare(run_of(folder), run_of(path))
    assert causes(result) == []
    assert result.dtype == {"F16": "float16", "BF16": "bfloat16", "Q8_0": "int8", "Q4_0": "int4"}[kind]
    largest = max(cell.difference for row in result.rows.values() for cell in row.values())
    assert largest > {"F16": 1e-5, "BF16": 1e-4}.get(kind, 1e-3)


# --- something wrong --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "change", "cause"),
    [
        ("gpt_oss", {"sinks": None}, "sinks: sinks ignored/used"),
        ("bloom", {"bias": None}, "scores: score bias none/ALiBi"),
        ("t5", {"bias": None}, "scores: score bias none/relative"),
        ("falcon", {"scale": 0.5}, "scores: scale 0.5/"),
        ("gemma2", {"softcap": None}, "scores: softcap none/50"),
    ],
)
def test_traces_show_what_is_behind_the_rotation(
    family: str, change: dict[str, Any], cause: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    save_for_auto(tiny_model(family), tmp_path)
    trace = open_source(str(tmp_path), layer="all", engine="transformers").trace(TEXTS[0])
    wrong = _with_layer(trace, 1, **change)
    (found,) = causes(compare(traced_side(trace, "A"), traced_side(wrong, "B")))
    assert found.startswith(cause)
    (swapped,) = causes(compare(traced_side(wrong, "A"), traced_side(trace, "B")))
    assert swapped.partition("/")[0].endswith(found.partition("/")[2])  # what was A's value is B's


def _with_layer(trace: Trace, index: int, **change: Any) -> Trace:
    """The trace with another layer, whose weights follow from what it is said to have computed."""
    fields = {"recorded_scores": None, "recorded_weights": None} | change
    return replace(trace, layers=tuple(replace(one, **fields) if one.layer == index else one for one in trace.layers))


def test_a_mask_of_a_trace_is_named_in_the_mask_language(tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_whole("mistral", tmp_path, sliding_window=3, num_hidden_layers=3)
    of_transformers = open_source(str(tmp_path), layer="all", ids=True, engine="transformers", mask="causal").trace(IDS)
    right = run_of(tmp_path)
    assert causes(compare(right, traced_side(of_transformers, "B"))) == ["mask: mask causal/window(3)"]
    assert causes(compare(traced_side(of_transformers, "A"), right)) == ["mask: mask causal/window(3)"]


EDITS: list[tuple[dict[str, Any], str, Callable[[np.ndarray], np.ndarray] | None, str]] = [
    ({"rope_parameters": {"rope_theta": 23456.0, "rope_type": "default"}}, "", None, "rotation: rotary base 23456/500"),
    ({}, "layers.1.self_attn.k_proj.weight", lambda w: 1.01 * w, "projections: projection weights of k changed/"),
    ({}, "layers.1.self_attn.o_proj.weight", lambda w: 1.01 * w, "output: output projection's weights changed/"),
    (
        {},
        "layers.1.mlp.up_proj.weight",
        lambda w: 1.01 * w,
        "output: output of the feed-forward network or its norm changed/",
    ),
    ({}, "embed_tokens.weight", lambda w: 1.01 * w, "input: embedding or its norm changed/"),
]


@pytest.mark.parametrize(("config", "name", "change", "cause"), EDITS)
def test_folders_part_where_they_were_edited(
    config: dict[str, Any], name: str, change: Any, cause: str, llama: Path, tmp_path: Path
) -> None:
    base = edited(llama, tmp_path / "a", {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}})
    other = edited(
        base, tmp_path / "b", config, lambda key, array: change(array) if change and key.endswith(name) else array
    )
    result = compare(run_of(base), run_of(other))
    assert causes(result) == [cause]
    assert all(parting.cause and (parting.cause.undone or 0) < 1e-6 for parting in result.partings)
    assert [one.layers for one in result.partings] == [[0, 1, 2] if config else [0] if "embed" in name else [1]]


def test_two_faults_are_named_in_their_order(llama: Path, tmp_path: Path) -> None:
    rope = {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}}
    base = edited(llama, tmp_path / "a", rope | {"attention_bias": False})
    other = edited(
        base, tmp_path / "b", {"rope_parameters": {"rope_theta": 10_000.0, "rope_type": "linear", "factor": 4.0}},
        lambda key, array: 1.1 * array if "layers.2.self_attn.v_proj.weight" in key else array,
    )  # fmt: skip
    rotation, last = causes(compare(run_of(base), run_of(other)))
    assert rotation == "rotation: rotary base 10000, scaling linear 4/base 500, scaling none"
    assert last == "projections: projection weights of v changed/"


@pytest.mark.parametrize(
    ("name", "factor", "stage"),
    [
        ("layers.1.self_attn.v_proj", -3.0, "projections"),
        ("layers.1.self_attn.v_proj", 1.05, "projections"),
        ("layers.1.mlp.down_proj", 0.0, "output"),
        ("layers.1.mlp.down_proj", 0.9, "output"),
    ],
)
def test_weights_in_few_bits_hide_no_fault(name: str, factor: float, stage: str, llama: Path, tmp_path: Path) -> None:
    def rounded(key: str, array: np.ndarray) -> torch.Tensor:
        return torch.tensor(array * factor if name in key else array).bfloat16()

    folder = edited(llama, tmp_path / "b", {})
    tensors = {key: rounded(key, array) for key, array in load_file(llama / "model.safetensors").items()}
    save_torch_file(tensors, folder / "model.safetensors")
    result = compare(run_of(llama), run_of(folder))
    assert [(parting.layers, parting.stage) for parting in result.partings] == [([1], stage)]


def captured(run: Side, change: Callable[[int, str, np.ndarray], np.ndarray], dtype: str = "float32") -> Side:
    """The run as a capture of its rotated q, k and v, changed."""
    layers = {
        layer.index: LayerCapture(**{name: change(layer.index, name, layer.arrays[name]) for name in "qkv"})
        for layer in run.layers()
    }
    return captured_side(Capture(layers, np.array(run.token_ids), dtype=dtype), "B")


def test_a_capture_may_end_early_and_has_no_gap(llama: Path) -> None:
    right = run_of(llama)
    whole = captured(right, lambda _, name, array: array)

    def only(*indices: int) -> Side:
        return replace(
            whole, layers=lambda: (layer for layer in whole.layers() if layer.index in indices), held=indices
        )

    result = compare(right, only(0, 1))
    notes = ["one run alone has layer 2"]
    assert (causes(result), list(result.rows), [one.partition(";")[0] for one in result.notes]) == ([], [0, 1], notes)
    with pytest.raises(InputError, match="B lacks layer 1; write q, k and v of all layers"):
        compare(right, only(0, 2))


def test_the_final_norm_is_compared(llama: Path, tmp_path: Path) -> None:
    names = {"model.norm.weight", "norm.weight"}
    other = edited(llama, tmp_path / "b", {}, lambda key, array: 2 * array if key in names else array)
    (parting,) = compare(run_of(llama), run_of(other)).partings
    assert (parting.stage, parting.layers, parting.cause) == ("last output", [2], None)


def test_another_number_of_layers_is_refused(llama: Path, tmp_path: Path) -> None:
    other = edited(llama, tmp_path / "b", {"num_hidden_layers": 2})
    with pytest.raises(InputError, match=r"3 layers and .* 2 layers; give two runs of one checkpoint"):
        compare(run_of(llama), run_of(other))


def test_nan_is_no_agreement(llama: Path) -> None:
    right = run_of(llama)
    other = captured(right, lambda index, _, array: array * np.float32(np.nan if index == 1 else 1))
    with pytest.raises(InputError, match="q of layer 1 has NaN or infinity in B"):
        compare(right, other)


def test_numbers_of_bfloat16_are_compared_as_such(llama: Path) -> None:
    """NumPy has no bfloat16, so that programs write such numbers as float32."""
    right = run_of(llama)
    port = captured(right, lambda _, __, array: torch.tensor(array).bfloat16().float().numpy())
    result = compare(right, port)
    assert (causes(result), result.dtype, "fit bfloat16" in port.notes[0]) == ([], "bfloat16", True)


def test_an_array_of_the_same_stage_goes_on_agreeing(llama: Path) -> None:
    """A factor of k alone is no scaling of the rotation, which changes q as well."""
    right = run_of(llama)
    port = captured(right, lambda index, name, array: array * np.float32(1.1 if (index, name) == (1, "k") else 1))
    (found, *_) = compare(right, port).partings
    assert (found.layers, found.stage, found.cause and found.cause[:2]) == (
        [1], "projections", ("projection weights of k", "changed"),
    )  # fmt: skip


def test_noise_that_grows_without_end_is_no_rounding(llama: Path) -> None:
    right, draws = run_of(llama), np.random.default_rng(0)
    growing = captured(right, lambda index, _, array: _noisy(array, 6e-7 * 7**index, draws))
    assert not compare(captured(right, lambda _, name, array: array), growing).agrees


def test_a_factor_is_no_rounding_of_16_bits(llama: Path) -> None:
    right, draws = run_of(llama), np.random.default_rng(0)

    def scaled(index: int, name: str, array: np.ndarray) -> np.ndarray:
        return _noisy(array * np.float32(1.15 if (index, name) == (1, "v") else 1), 2e-3, draws)

    (found,) = compare(right, captured(right, scaled, "bfloat16")).partings[:1]
    assert (found.layers, found.stage) == ([1], "projections")


def test_noise_of_a_wrong_twin_is_no_cause(llama: Path) -> None:
    right = run_of(llama)
    draws = np.random.default_rng(0)

    def noisy(noise: float, dtype: str) -> Side:
        return captured(right, lambda index, _, array: _noisy(array, noise * (index == 1), draws), dtype)

    assert causes(compare(right, noisy(0.0, "float32"))) == []
    (found,) = compare(right, noisy(1e-3, "float32")).partings
    assert (found.layers, found.stage, found.cause) == ([0], "output", None)  # what enters layer 1
    assert causes(compare(right, noisy(1e-3, "bfloat16"))) == []  # of which this is rounding


def _noisy(array: np.ndarray, noise: float, draws: np.random.Generator) -> np.ndarray:
    return (array * (1 + noise * draws.standard_normal(array.shape))).astype(np.float32)


def test_positions_of_a_program_are_no_token_ids(llama: Path) -> None:
    """A program that `attn run --save` watched has no tokens, only positions."""
    trace = open_source(str(llama), layer="all", ids=True, engine="transformers").trace(IDS)
    tokens = Tokens(replace(token, id=token.index, text=str(token.index)) for token in trace.key_tokens)
    source = trace.source._replace(kind="module")
    watched = replace(trace, source=source, query_tokens=tokens, key_tokens=tokens)
    assert causes(compare(run_of(llama), traced_side(watched, "B"))) == []


def test_runs_of_other_sizes_are_refused(llama: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_whole("llama", tmp_path, **SIZES | {"num_attention_heads": 2, "num_key_value_heads": 1})
    with pytest.raises(InputError, match="two runs of one checkpoint"):
        compare(run_of(llama), run_of(tmp_path))
