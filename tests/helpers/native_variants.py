"""Configurations of every family that the native engine computes: each field that it reads, in every way."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from architectures import random_model, tiny_config
from conformance import opened, save_tokenizer
from transformers import CONFIG_MAPPING, AutoModel, PreTrainedTokenizerFast

from attncli.checkpoints.checkpoint_folder import CheckpointFolder, ConfigReader
from attncli.checkpoints.tensors.open_store import Shards
from attncli.engines.numpy import forward
from attncli.engines.numpy.families import model_spec
from attncli.engines.numpy.forward import TokenIds
from attncli.engines.numpy.model_spec import ModelWeights
from attncli.trace.layer import LayerTrace

EXACT = 1e-5  # the largest difference that counts as the same, relative to the largest number of the array above 1

ABSENT = object()  # a field that the file does not have
Changes = Mapping[str, Any]

_SIZES: dict[str, list[Any]] = {
    "vocab_size": [70], "hidden_size": [48], "num_attention_heads": [2], "num_hidden_layers": [1, 5],
    "intermediate_size": [40], "max_position_embeddings": [40],
}  # fmt: skip
_BERT: dict[str, list[Any]] = {
    **_SIZES,
    "hidden_act": ["gelu", "relu", "gelu_new", "silu"],
    "layer_norm_eps": [1e-12, 1e-3], "type_vocab_size": [1, 3],
}  # fmt: skip
_ROBERTA: dict[str, list[Any]] = _BERT | {"pad_token_id": [0, 1, 3, ABSENT]}
_LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16, "rope_theta": 500.0,
}  # fmt: skip
_ROPES: dict[str, list[Any]] = {
    "rope_parameters": [ABSENT, {"rope_theta": 500.0, "rope_type": "default"}, {"rope_theta": 500.0,
        "rope_type": "linear", "factor": 2.5}, _LLAMA3],
    # As transformers 4 wrote it.
    "rope_theta": [700.0],
    "rope_scaling": [{"type": "linear", "factor": 3.0}, _LLAMA3, None],
}  # fmt: skip
_TIED: dict[str, list[Any]] = {"tie_word_embeddings": [True, False, ABSENT]}
_LLAMA: dict[str, list[Any]] = {
    **_SIZES, **_ROPES, "num_key_value_heads": [1, 4, None], "head_dim": [6, 16, None],
    "hidden_act": ["silu", "gelu", "gelu_pytorch_tanh", "relu"],
    "rms_norm_eps": [1e-2], **_TIED,
}  # fmt: skip
_BIASES: dict[str, list[Any]] = {"attention_bias": [True]}
_WINDOWS: dict[str, list[Any]] = {
    "sliding_window": [1, 4, 100], "use_sliding_window": [True, False],
    "layer_types": [["sliding_attention", "full_attention", "sliding_attention"], None],
}  # fmt: skip
_QWEN2 = _LLAMA | _WINDOWS | {"head_dim": [6, 16], "max_window_layers": [0, 1, 2]}
_GEMMA2: dict[str, list[Any]] = {
    **{name: values for name, values in _LLAMA.items() if name not in ("hidden_act", "num_key_value_heads",
        "head_dim")},
    **_BIASES, "num_key_value_heads": [1, 4], "head_dim": [6, 16], "hidden_act": ["gelu_pytorch_tanh"],
    "hidden_activation": ["gelu_pytorch_tanh", "gelu", "silu"], "sliding_window": [1, 4, 100],
    "layer_types": [["full_attention", "full_attention", "sliding_attention"], None],
    "query_pre_attn_scalar": [12, 16], "attn_logit_softcapping": [5.0, None], "final_logit_softcapping": [7.0, None],
}  # fmt: skip

# For each family, the values of each field that it reads.
VARIANTS: dict[str, dict[str, list[Any]]] = {
    "bert": _BERT, "roberta": _ROBERTA,
    "distilbert": {"vocab_size": [70], "dim": [48], "n_heads": [2], "n_layers": [1, 5], "hidden_dim": [40],
        "max_position_embeddings": [40], "activation": ["gelu", "relu"], "sinusoidal_pos_embds": [True]},
    "gpt2": {"vocab_size": [70], "n_embd": [48], "n_head": [2], "n_layer": [1, 5], "n_inner": [40, None],
        "n_positions": [40], "activation_function": ["gelu_new", "gelu", "relu", "silu", "gelu_fast",
        "gelu_pytorch_tanh"], "layer_norm_epsilon": [1e-3], "scale_attn_weights": [False],
        "scale_attn_by_inverse_layer_idx": [True], **_TIED, "reorder_and_upcast_attn": [True]},
    "gpt_neox": {**_SIZES, **_TIED, "hidden_size": [64], "hidden_act": ["gelu", "gelu_new", "relu"],
        "layer_norm_eps": [1e-3], "attention_bias": [False], "use_parallel_residual": [False],
        "rope_parameters": [ABSENT, {"rope_theta": 500.0, "rope_type": "default", "partial_rotary_factor": 0.5}],
        "rope_theta": [ABSENT], "rope_scaling": [{"type": "linear", "factor": 3.0}], "rotary_emb_base": [300.0],
        "rotary_pct": [0.5, 1.0]},
    "llama": _LLAMA | _BIASES | {"mlp_bias": [True]},
    "mistral": _LLAMA | {"num_key_value_heads": [1, 4], "sliding_window": [1, 4, 100, None]}, "qwen2": _QWEN2,
    "qwen3": {**_QWEN2, **_BIASES},
    "gemma": {**_LLAMA, **_BIASES, "head_dim": [6, 16], "num_key_value_heads": [1, 4],
        "hidden_activation": ["gelu_pytorch_tanh", None]},
    "gemma2": _GEMMA2,
    "gemma3_text": {**{name: values for name, values in _GEMMA2.items() if name != "attn_logit_softcapping"},
        "attn_logit_softcapping": [None], "rope_parameters": [ABSENT, {"full_attention": {"rope_theta": 500.0,
        "rope_type": "linear", "factor": 4.0}, "sliding_attention": {"rope_theta": 50.0, "rope_type": "default"}},
        {"full_attention": _LLAMA3}], "rope_scaling": [{"rope_type": "linear", "factor": 3.0}, _LLAMA3, None],
        "rope_local_base_freq": [60.0], "sliding_window_pattern": [2]},
}  # fmt: skip

# What a field needs beside it to have a meaning.
_BESIDE: dict[str, Changes] = {
    "rope_theta": {"rope_parameters": ABSENT}, "rope_scaling": {"rope_parameters": ABSENT},
    "rotary_emb_base": {"rope_parameters": ABSENT}, "rotary_pct": {"rope_parameters": ABSENT},
    "rope_local_base_freq": {"rope_parameters": ABSENT}, "sliding_window_pattern": {"layer_types": ABSENT},
    "max_window_layers": {"layer_types": ABSENT}, "use_sliding_window": {"layer_types": ABSENT},
}  # fmt: skip
# Fields of which one can hide what another does, or does not go with it; no others share a group.
_GROUPS = {
    name: group
    for group, names in {
        "heads": "hidden_size n_embd dim num_attention_heads n_head n_heads num_key_value_heads head_dim "
        "query_pre_attn_scalar scale_attn_weights scale_attn_by_inverse_layer_idx reorder_and_upcast_attn",
        "layers": "num_hidden_layers n_layer n_layers",
        "positions": "max_position_embeddings n_positions pad_token_id "
        "sinusoidal_pos_embds rope_parameters rope_theta rope_scaling rope_local_base_freq rotary_emb_base rotary_pct "
        "layer_types max_window_layers sliding_window use_sliding_window "
        "sliding_window_pattern",
        "activations": "hidden_act hidden_activation",
    }.items()
    for name in names.split()
}


def config_of(family: str, changes: Changes) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(tiny_config(family).to_json_string(use_diff=False))
    context = {key: value for name in changes for key, value in _BESIDE.get(name, {}).items()}
    if "num_hidden_layers" in changes:
        context |= {name: ABSENT for name in ("layer_types",) if name not in changes}  # an entry for each layer
    # Wider weights make larger scores, which multiply what is rounded differently below them.
    config |= {"initializer_range": 0.2} | context | dict(changes)
    return {name: value for name, value in config.items() if value is not ABSENT}


def save(config: Changes, folder: Path) -> Any:
    model = random_model(AutoModel.from_config, CONFIG_MAPPING[config["model_type"]].from_dict({**config}))
    model.save_pretrained(folder)
    save_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return model


def save_whole(family: str, folder: Path, *input_names: str, **changes: Any) -> Any:
    """Save a tiny checkpoint with a tokenizer that needs no help, which gives the model these inputs too."""
    model = save(config_of(family, changes), folder)
    PreTrainedTokenizerFast(
        tokenizer_file=f"{folder}/tokenizer.json", unk_token="<unk>", pad_token="<pad>",
        model_input_names=["input_ids", "attention_mask", *input_names],
    ).save_pretrained(folder)  # fmt: skip
    return model


def native_packed(folder: Path, sentences: Sequence[Sequence[int]]) -> list[list[LayerTrace]]:
    spec = model_spec(ConfigReader(json.loads((folder / "config.json").read_text(encoding="utf-8"))))
    store = Shards(CheckpointFolder(Path(folder)))
    weights = ModelWeights(str(folder), store, spec.prefix, spec.embedding.tokens.name + ".weight")
    every = range(len(spec.layers)), tuple(range(spec.heads.count))
    return forward.Model(spec, weights).record([TokenIds(ids) for ids in sentences], *every, None)


def agree(found: Iterable[LayerTrace], reference: tuple[LayerTrace, ...]) -> bool:
    """Return whether the numbers of layers are known ones but for rounding; everything else has to be the same."""
    worst: list[float] = []
    for layer, other in zip(found, reference, strict=True):
        for each in ("layer", "kind", "softcap"):
            assert getattr(layer, each) == getattr(other, each)
        assert str(layer.mask) == str(other.mask)
        assert abs(layer.scale - other.scale) <= 1e-9 * other.scale
        arrays = {each: (getattr(layer, each), getattr(other, each)) for each in "qkv"}
        for each in ("scores", "weights", "output"):
            arrays[each] = tuple(np.stack([_array(one, head, each) for head in one.heads]) for one in (layer, other))
        for one, two in arrays.values():
            assert one.shape == two.shape
            worst.append(np.abs(one - two).max() / max(np.abs(two).max(), 1.0))
    return all(difference <= EXACT for difference in worst)  # which NaN is not


def _array(layer: LayerTrace, head: int, name: str) -> Any:
    found = layer.head(head)
    return np.where(found.mask, found.scores, 0) if name == "scores" else getattr(found, name)


def conform(folder: Path) -> bool:
    trace = opened(folder, "all").trace("w7 w8 w9 w10 w9 w11 w12 w13 w1 w14 w15 w16")
    ids = trace.key_tokens.ids
    # Beside others, of which one is as long.
    found = native_packed(folder, [ids[:5], ids, ids[::-1], ids[:1]])[1]
    return agree(found, trace.layers)


def each_value(family: str) -> Iterator[Changes]:
    groups: dict[str, list[Changes]] = {}
    for name, values in VARIANTS[family].items():
        groups.setdefault(_GROUPS.get(name, name), []).extend({name: value} for value in values)
    yield from ({}, *groups.pop("layers"))  # of one layer alone, nothing after its attention is seen
    for together in zip_longest(*groups.values(), fillvalue={}):
        yield {name: value for changes in together for name, value in changes.items()}
