"""The native engine: the same numbers as transformers on every family, or none at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from conformance import opened
from native_variants import VARIANTS, agree, config_of, conform, each_value, native_packed, save, save_whole
from running import Run
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForMaskedLM, GenerationConfig, PreTrainedConfig

import attncli
from attncli.checkpoints.checkpoint_folder import ConfigReader, UnsupportedError
from attncli.engines import cpu
from attncli.engines.numpy.families import FAMILIES, model_spec
from attncli.errors import InputError, LoadError, NotExposedError, UsageError


@pytest.mark.parametrize("family", FAMILIES)
def test_each_value_of_a_field_is_computed_alike(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list(each_value(family))
    assert sum(map(len, tried)) == sum(map(len, VARIANTS[family].values()))
    for number, changes in enumerate(tried):
        folder = tmp_path / str(number)
        folder.mkdir()
        save(config_of(family, changes), folder)
        assert conform(folder), changes
    with monkeypatch.context() as patch:  # the last of them once more, as a long text is computed
        patch.setattr(cpu, "LONG", 2)
        patch.setenv("OMP_NUM_THREADS", "2")
        assert conform(folder), changes


@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_is_varied_and_an_absent_one_has_the_default_of_transformers_or_declines(family: str) -> None:
    stated = json.loads(CONFIG_MAPPING[family]().to_json_string(use_diff=False))
    fields = ConfigReader(stated)
    spec = model_spec(fields)
    assert fields.read - {"model_type"} == set(VARIANTS[family])
    for name in VARIANTS[family]:
        with suppress(UnsupportedError):
            less = model_spec(ConfigReader({other: value for other, value in stated.items() if other != name}))
            assert repr(less) == repr(spec)


UNKNOWN: list[dict[str, Any]] = [
    {"a_field_of_tomorrow": 1}, {"position_embedding_type": "relative_key"}, {"is_decoder": True},
    {"add_cross_attention": True}, {"quantization_config": {"bits": 4}}, {"use_bidirectional_attention": True},
    {"is_causal": False}, {"is_encoder_decoder": True}, {"use_mrope": True}, {"per_layer_config": {"0": {}}},
    {"pruned_heads": {"0": [1]}}, {"layer_scale": 2.0}, {"token_id_shift": 1}, {"auto_map": {"AutoModel": "a.B"}},
    {"num_hidden_layers": "six"}, {"n_layer": -1}, {"model_type": ["bert"]}, {"model_type": "bloom"},
]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_a_field_that_is_not_implemented_declines(family: str) -> None:
    config = config_of(family, {})
    for changes in UNKNOWN:
        with pytest.raises(UnsupportedError):
            model_spec(ConfigReader(config | changes))


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "mrope", "proportional", "yarn"])
def test_a_rotary_embedding_that_is_not_implemented_declines(kind: str) -> None:
    rope = {"rope_parameters": {"rope_type": kind, "rope_theta": 100.0, "factor": 2}}
    with pytest.raises(UnsupportedError, match=kind):
        model_spec(ConfigReader(config_of("llama", rope)))


# Fields of the hub's files that no version of transformers reads now.
PUBLISHED = {
    "gpt2": {"n_special": 0, "predict_special_tokens": True, "n_ctx": 1024, "task_specific_params": {}},
    "llama": {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {}, "unsloth_fixed": True},
    "bert": {"_attn_implementation_autoset": True, "gradient_checkpointing": False, "unsloth_version": "2025.1"},
    "distilbert": {"tie_weights_": True, "torchscript": True, "pruned_heads": {}, "finetuning_task": "mrpc"},
    "qwen2": {"use_mrope": False, "attn_implementation": "sdpa", "_model_name_or_path": "a", "unk_token_id": 3},
    "gemma3_text": {"_sliding_window_pattern": 2, "eos_token_ids": [1, 2], "forced_decoder_ids": [[1, 2]]},
}

# Fields that change numbers, and are false in every native family.
OF_ENCODERS = {"add_cross_attention", "is_decoder", "is_encoder_decoder", "use_bidirectional_attention"}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_configuration_that_transformers_saves_is_taken(family: str, tmp_path: Path) -> None:
    config = CONFIG_MAPPING[family].from_dict(config_of(family, {}))
    config.architectures, config.id2label = ["A"], {0: "a", 1: "b", 2: "c"}
    for use_diff in (True, False):
        saved = json.loads(config.to_json_string(use_diff=use_diff))
        more = {"_name_or_path": "a", "_commit_hash": "1", "license": "mit", "model_max_length": 9, "auto_map": {}}
        fields = ConfigReader(saved)
        model_spec(fields)
        of_transformers = GenerationConfig().to_dict().keys() | PreTrainedConfig().to_dict().keys()
        assert len(of_transformers) > 60
        more |= dict.fromkeys(of_transformers - fields.read - OF_ENCODERS, "another")
        assert repr(model_spec(ConfigReader(saved | more))) == repr(model_spec(ConfigReader(saved)))


@pytest.mark.filterwarnings("error")
def test_fields_that_matter_to_nothing_are_passed_over() -> None:
    for family, fields in PUBLISHED.items():
        config = config_of(family, {})
        assert repr(model_spec(ConfigReader(config | fields))) == repr(model_spec(ConfigReader(config)))


def agrees(model: str | Path, text: str, **options: Any) -> Any:
    found, reference = (
        attncli.inspect(text, model=str(model), engine=engine, **options) for engine in ("native", "transformers")
    )
    assert found.source.details["engine"] == "native"
    assert reference.source.details["engine"] == "transformers"
    assert (found.key_tokens, found.notes) == (reference.key_tokens, reference.notes)
    assert (found.source.architecture, found.source.layers) == (reference.source.architecture, reference.source.layers)
    assert agree(found.layers, reference.layers)
    return found


@pytest.mark.parametrize(("text", "options"), [
    ("time flies like an arrow", {"layer": 5, "pair": "fruit flies like a banana"}),
    ("time flies like an arrow", {"layer": 4, "mask": "causal & window(2)"}),
    # some queries see no key
    ("time flies like an arrow", {"layer": 3, "mask": "keys(0,2)"}),
    ("time " * 600, {"layer": 2, "truncate": True}), ("x", {"layer": "all", "special": False}),
    ("日本語 [MASK] 👩‍👩‍👧 [PAD] naïve", {"layer": "all"}),
])  # fmt: skip
def test_minilm_is_what_transformers_computes(text: str, options: dict[str, Any], minilm: str) -> None:
    agrees(minilm, text, **options)


@pytest.mark.parametrize(("family", "dtype"), [("bert", torch.float16), ("gemma2", torch.bfloat16)])
def test_weights_may_be_in_several_files_and_in_half_precision(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = save(config_of(family, {}), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    model.to(dtype).save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert agree(*both(tmp_path))


@pytest.mark.parametrize("family", ["gpt2", "llama", "roberta", "distilbert"])
def test_weights_may_be_those_of_a_model_with_a_head(family: str, tmp_path: Path) -> None:
    config = config_of(family, {})
    save(config, tmp_path)
    kind = AutoModelForMaskedLM if "bert" in family else AutoModelForCausalLM
    kind.from_config(CONFIG_MAPPING[family].from_dict(config)).save_pretrained(tmp_path)
    assert agree(*both(tmp_path))


def both(folder: Path) -> tuple[list[Any], tuple[Any, ...]]:
    trace = opened(folder, "all").trace("w7 w8 w9 w10 w11")
    return native_packed(folder, [trace.key_tokens.ids])[0], trace.layers


def changed_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    save_whole("bert", tmp_path)
    name = "encoder.layer.1.attention.self.key.weight"
    changed_weights(tmp_path, lambda tensors: tensors.update({name: tensors[name] * torch.nan}))
    assert not agree(*both(tmp_path))
    assert attncli.inspect("w7 w8", model=str(tmp_path), layer=0).source.details["engine"] == "native"
    for engine in ("auto", "native", "verify"):
        with pytest.raises(InputError, match=r"the native engine does not compute .* not finite; give --engine tr"):
            attncli.inspect("w7 w8", model=str(tmp_path), layer=1, engine=engine)


@pytest.mark.parametrize("part", ["weight", "bias"])
def test_a_tensor_that_is_missing_is_for_transformers_to_report(part: str, minilm: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(minilm, tmp_path / "broken"))
    changed_weights(folder, lambda tensors: tensors.pop(f"encoder.layer.2.attention.self.key.{part}"))
    for engine, error in (("auto", LoadError), ("native", NotExposedError)):
        # The layers below are whole.
        assert attncli.inspect("time flies", model=str(folder), engine=engine, layer=1).layers[0].layer == 1
        with pytest.raises(error, match=r"layer\.2\.attention\.self\.key"):
            attncli.inspect("time flies", model=str(folder), engine=engine, layer=2)


def test_verify_shows_how_far_the_engines_are_apart(minilm: str, attn: Run) -> None:
    ran = attn("inspect", "-m", minilm, "time flies", "--layer", "all", "--engine", "verify", "-F", "json")
    proofs = [layer["proof"] for layer in ran.json["layers"]]
    assert len(proofs) == 6
    assert {proof["against"] for proof in proofs} == {"those of transformers"}
    assert 0 < max(proof["max_abs_error"] for proof in proofs) < 1e-4
    shown = attn("inspect", "-m", minilm, "time flies", "--engine", "verify", "--show", "proof").out
    assert "max |Q, K, V, weights − those of transformers| = " in shown
    measured = ("heads", "-m", minilm, "time flies", "--layer", "0", "-F", "tsv")
    assert attn(*measured, "--engine", "verify").out == attn(*measured).out


def test_what_the_native_engine_does_not_compute_goes_to_transformers(minilm: str, tmp_path: Path) -> None:
    for options in ({"dtype": "float64"}, {"dtype": "bfloat16"}, {"trust_remote_code": True}):
        trace = attncli.inspect("time flies", model=minilm, engine="auto", **options)
        assert trace.source.details["engine"] == "transformers"
        with pytest.raises(NotExposedError, match="the native engine does not compute"):
            attncli.inspect("time flies", model=minilm, engine="native", **options)
    with pytest.raises(NotExposedError, match="drop the option"):
        attncli.inspect("time flies", model=minilm, engine="verify", dtype="float64")
    with pytest.raises(UsageError, match="--engine does not apply to a checkpoint that transformers runs"):
        attncli.check(minilm, engine="native")
    with pytest.raises(UsageError, match="--engine 'numpy'"):
        attncli.inspect("time flies", model=minilm, engine="numpy")
