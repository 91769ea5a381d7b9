"""The config.json that a checkpoint of transformers would have, by what a GGUF file says of its model.

<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>; what the file does not say is as llama.cpp has it. A field
that is not known may change the numbers: such a file is declined.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attncli.checkpoints.config_reader import ConfigReader, UnsupportedError
from attncli.checkpoints.tensors.gguf import FREQUENCIES, NAMES, GgufFile
from attncli.engines.numpy.rope import rope_of
from attncli.files import to_float32

_FIELDS = {
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
        UnsupportedError: its architecture, or what one of its fields says, is not known.
        LoadError: it has no architecture.
    """
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise file.damaged("it names no architecture")
    if architecture not in NAMES:
        raise UnsupportedError(f"the architecture {architecture} of a GGUF file is not among its own")
    prefix = f"{architecture}."
    fields = _Metadata({
        name.removeprefix(prefix): value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in file.metadata.items() if name.startswith(prefix)
    })  # fmt: skip
    table = file.shapes.get("token_embd.weight")
    if table is None or len(table) != 2:
        raise UnsupportedError("it has no token_embd.weight")
    config = {"model_type": architecture, "vocab_size": table[0]}
    config |= {name: fields.get(key) for key, name in _FIELDS.items()}
    config |= _decoder(architecture, config, fields, file)
    fields.get("vocab_size", None)  # of which the table of embeddings tells
    fields.reject_unknown()
    return config


class _Metadata(ConfigReader):
    """The fields of a file that begin with its architecture, without that."""

    where = "the file"

    def reject_unknown(self) -> None:
        """Raise UnsupportedError for a field that nobody read."""
        for name in self._values:
            if name not in self.read:
                raise UnsupportedError(f"it does not know the field {name}")


def _decoder(architecture: str, config: Mapping[str, Any], fields: ConfigReader, file: GgufFile) -> dict[str, Any]:
    """Return what the configuration says of how layers attend."""
    heads, hidden = fields.count("attention.head_count"), fields.count("embedding_length")
    width = fields.count("attention.key_length", hidden // heads)
    fields.get("attention.value_length", width, among=(width,))
    fields.get("rope.dimension_count", width, among=(width,))
    fields.get("expert_count", 0, among=(0,))
    fields.get("attention.causal", True, among=(True,))
    more: dict[str, Any] = {"head_dim": width, "num_key_value_heads": fields.count("attention.head_count_kv", heads)}
    if architecture != "qwen2" and not {"blk.0.attn_q.bias", "blk.0.attn_output.bias"}.isdisjoint(file.shapes):
        more["attention_bias"] = True
    more |= _rotated(architecture, fields, file, width)
    if architecture == "llama" and (window := fields.get(_WINDOW, None)) is not None:
        more |= {"model_type": "mistral", "sliding_window": window}
    if architecture in ("gemma2", "gemma3"):
        by_model = config["num_hidden_layers"] == _SCALED_BY_MODEL[architecture]
        more |= {
            "sliding_window": fields.get(_WINDOW),
            "query_pre_attn_scalar": hidden // heads if by_model else width,
        }
    if architecture == "gemma2":
        more["attn_logit_softcapping"] = fields.number("attn_logit_softcapping", 50.0)
        fields.get("final_logit_softcapping", None)  # of the head on top
    if architecture == "gemma3":
        more["model_type"] = "gemma3_text"
        more["sliding_window_pattern"] = fields.count("attention.sliding_window_pattern", 6)
    return more


def _rotated(architecture: str, fields: ConfigReader, file: GgufFile, width: int) -> dict[str, Any]:
    """Return what a configuration says of its rotary embeddings."""
    theta = fields.number("rope.freq_base", 10_000.0)
    kind = fields.get("rope.scaling.type", "none", among=("none", "linear"))
    factor = fields.get("rope.scaling.factor", 1.0)
    fields.get("rope.scaling.finetuned", None)  # how the model was trained
    fields.get("rope.scaling.original_context_length", None)  # likewise
    rotated: dict[str, Any] = {"rope_theta": theta}
    if FREQUENCIES in file.shapes:
        rotated["rope_scaling"] = _stretched(file, theta, width)
    elif kind != "none":
        rotated["rope_scaling"] = {"rope_type": kind, "factor": factor}
    if architecture == "gemma3":
        rotated["rope_local_base_freq"] = fields.number("rope.freq_base_swa", 10_000.0)
    return rotated


def _stretched(file: GgufFile, theta: float, width: int) -> dict[str, Any]:
    """Return the parameters whose frequencies are those of the model divided by the numbers in a table of the file."""
    divisors = to_float32(file.read(FREQUENCIES))
    plain = rope_of({}, {"rope_theta": theta}, width, 1).frequencies
    for parameters in _LLAMA3:
        frequencies = rope_of(parameters, {"rope_theta": theta}, width, 1).frequencies
        if frequencies.shape == divisors.shape and np.allclose(plain / divisors, frequencies, rtol=1e-6, atol=0):
            return parameters
    raise UnsupportedError("the frequencies of its rotary embedding are not those of Llama 3")
