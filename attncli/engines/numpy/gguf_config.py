"""The config.json that a checkpoint of transformers would have, by what a GGUF file says of its model.

<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>; what the file does not say is as llama.cpp has it. A field
that is not known may change the numbers: such a file is declined.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attncli.checkpoints.config_reader import DeclinedError, Fields
from attncli.checkpoints.tensors.gguf import FREQUENCIES, NAMES
from attncli.checkpoints.tensors.gguf_file import GgufFile
from attncli.engines.numpy.rope import rope_of
from attncli.files import widened

_OF_GPT2 = {
    "context_length": "n_positions",
    "embedding_length": "n_embd",
    "feed_forward_length": "n_inner",
    "block_count": "n_layer",
    "attention.head_count": "n_head",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}
_OF_DECODERS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_WINDOW = "attention.sliding_window"
# Layers of the models whose scores llama.cpp scales by the width of the model in place of that of a head.
_SCALED_BY_MODEL = {"gemma2": 46, "gemma3": 62}
# The factors of the published models of Llama 3.1 and later; which one, the file's own table of frequencies says.
_LLAMA3 = [
    {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 8192}
    for factor in (8.0, 32.0)
]  # fmt: skip


def config_of(file: GgufFile) -> dict[str, Any]:
    """Return the fields of a config.json.

    Raises:
        DeclinedError: its architecture, or what one of its fields says, is not known.
    """
    architecture = file.metadata.get("general.architecture")
    if architecture not in NAMES:
        raise DeclinedError(f"the architecture {architecture} of a GGUF file is not among its own")
    own = {name.removeprefix(f"{architecture}."): value for name, value in file.metadata.items()
           if name.startswith(f"{architecture}.")}  # fmt: skip
    said = _Said(own)
    table = file.shapes.get("token_embd.weight")
    if table is None or len(table) != 2:
        raise DeclinedError("it has no token_embd.weight")
    config = {"model_type": architecture, "vocab_size": table[0]}
    config |= _gpt2(said) if architecture == "gpt2" else _decoder(architecture, said, file)
    said.check_all_read()
    return config


class _Said(Fields):
    """The fields of a file that begin with its architecture, without that."""

    def check_all_read(self) -> None:
        """Raise DeclinedError for a field that nobody read."""
        for name in self._values:
            if name not in self.read:
                raise DeclinedError(f"it does not know the field {name}")


def _taken(said: Fields, names: Mapping[str, str]) -> dict[str, Any]:
    said.take("vocab_size", None)  # of which the table of embeddings tells
    return {name: said.take(key) for key, name in names.items()}


def _gpt2(said: Fields) -> dict[str, Any]:
    return _taken(said, _OF_GPT2)


def _decoder(architecture: str, said: Fields, file: GgufFile) -> dict[str, Any]:
    config = _taken(said, _OF_DECODERS)
    heads, hidden = said.count("attention.head_count"), said.count("embedding_length")
    width = said.count("attention.key_length", hidden // heads)
    said.take("attention.value_length", width, among=(width,))
    said.take("rope.dimension_count", width, among=(width,))
    said.take("expert_count", 0, among=(0,))
    said.take("attention.causal", True, among=(True,))
    config |= {"head_dim": width, "num_key_value_heads": said.count("attention.head_count_kv", heads)}
    if architecture != "qwen2" and not {"blk.0.attn_q.bias", "blk.0.attn_output.bias"}.isdisjoint(file.shapes):
        config["attention_bias"] = True
    theta = said.number("rope.freq_base", 10_000.0)
    config |= _rotated(architecture, said, file, theta, width)
    if architecture == "llama" and (window := said.take(_WINDOW, None)) is not None:
        config |= {"model_type": "mistral", "sliding_window": window}
    if architecture in ("gemma2", "gemma3"):
        by_model = config["num_hidden_layers"] == _SCALED_BY_MODEL[architecture]
        config |= {
            "sliding_window": said.take(_WINDOW),
            "query_pre_attn_scalar": hidden // heads if by_model else width,
        }
    if architecture == "gemma2":
        config["attn_logit_softcapping"] = said.number("attn_logit_softcapping", 50.0)
        said.take("final_logit_softcapping", None)  # of the head on top
    if architecture == "gemma3":
        config["model_type"] = "gemma3_text"
        config["sliding_window_pattern"] = said.count("attention.sliding_window_pattern", 6)
    return config


def _rotated(architecture: str, said: Fields, file: GgufFile, theta: float, width: int) -> dict[str, Any]:
    """Return what a configuration says of its rotary embeddings."""
    kind = said.take("rope.scaling.type", "none", among=("none", "linear", "yarn"))
    factor = said.take("rope.scaling.factor", 1.0)
    said.take("rope.scaling.finetuned", None)  # how the model was trained
    trained = said.take("rope.scaling.original_context_length", None)
    stretched: dict[str, Any] | None = None
    if kind != "none":
        stretched = {"rope_type": kind, "factor": factor}
        if kind == "yarn":
            stretched["original_max_position_embeddings"] = trained
    if FREQUENCIES in file.shapes:
        stretched = _stretched(file, theta, width)
    if architecture == "gemma3":
        local = said.number("rope.freq_base_swa", 10_000.0)
        return {"rope_theta": theta, "rope_scaling": stretched, "rope_local_base_freq": local}
    return {"rope_theta": theta} | ({} if stretched is None else {"rope_scaling": stretched})


def _stretched(file: GgufFile, theta: float, width: int) -> dict[str, Any]:
    """Return the parameters whose frequencies are those of the model divided by the numbers in a table of the file."""
    divisors = widened(file.read(FREQUENCIES))
    plain = rope_of({}, {"rope_theta": theta}, width, 1).frequencies
    for parameters in _LLAMA3:
        known = rope_of(parameters, {"rope_theta": theta}, width, 1).frequencies
        if known.shape == divisors.shape and np.allclose(plain / divisors, known, rtol=1e-6, atol=0):
            return parameters
    raise DeclinedError("the frequencies of its rotary embedding are not those of Llama 3")
