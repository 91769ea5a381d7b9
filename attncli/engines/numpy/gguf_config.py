"""The config.json of a GGUF file, from its metadata; defaults are those of llama.cpp.

<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. A file with an unknown field is declined.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attncli.checkpoints.checkpoint_folder import ConfigReader, UnsupportedError
from attncli.checkpoints.tensors.gguf import ARCHITECTURES, FREQUENCIES, GgufFile
from attncli.engines.numpy.families import rope_of
from attncli.files import to_float32

_FIELDS = {
    "context_length": "max_position_embeddings", "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size", "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads", "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}  # fmt: skip
# The factors of the published models of Llama 3.1 and later; the file's own table of frequencies identifies one.
_LLAMA3 = [
    {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 8192}
    for factor in (8.0, 32.0)
]  # fmt: skip


def config_of(file: GgufFile) -> dict[str, Any]:
    """Return the fields of a config.json; UnsupportedError for an unknown architecture, field or value."""
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise file.damaged("it names no architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedError(f"the architecture {architecture} of a GGUF file is not supported")
    prefix = f"{architecture}."
    fields = ConfigReader(
        {
            name.removeprefix(prefix): value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in file.metadata.items()
            if name.startswith(prefix)
        },
        where="the file",
    )
    table = file.shapes.get("token_embd.weight")
    if table is None or len(table) != 2:
        raise UnsupportedError("it has no token_embd.weight")
    config = {"model_type": architecture, "vocab_size": table[0], "hidden_act": "silu"}
    config["tie_word_embeddings"] = "output.weight" not in file.shapes
    config |= {name: fields.get(key) for key, name in _FIELDS.items()}
    heads, hidden = fields.count("attention.head_count"), fields.count("embedding_length")
    width = fields.count("attention.key_length", hidden // heads)
    fields.get("attention.value_length", width, among=(width,))
    fields.get("rope.dimension_count", width, among=(width,))
    fields.get("expert_count", 0, among=(0,))
    fields.get("attention.causal", True, among=(True,))
    config |= {"head_dim": width, "num_key_value_heads": fields.count("attention.head_count_kv", heads)}
    if architecture != "qwen2" and not {"blk.0.attn_q.bias", "blk.0.attn_output.bias"}.isdisjoint(file.shapes):
        config["attention_bias"] = True
    config |= _rotated(fields, file, width)
    if architecture == "llama" and (window := fields.get("attention.sliding_window", None)) is not None:
        config |= {"model_type": "mistral", "sliding_window": window}
    fields.get("vocab_size", None)  # as the table of embeddings has
    fields.reject_unread()
    return config


def _rotated(fields: ConfigReader, file: GgufFile, width: int) -> dict[str, Any]:
    theta = fields.number("rope.freq_base", 10_000.0)
    kind = fields.get("rope.scaling.type", "none", among=("none", "linear"))
    factor = fields.get("rope.scaling.factor", 1.0)
    fields.get("rope.scaling.finetuned", None)  # a fact of the training
    fields.get("rope.scaling.original_context_length", None)  # likewise
    if FREQUENCIES not in file.shapes:
        scaling = {} if kind == "none" else {"rope_scaling": {"rope_type": kind, "factor": factor}}
        return {"rope_theta": theta} | scaling
    divisors = to_float32(file.read(FREQUENCIES))
    plain = rope_of({}, {"rope_theta": theta}, width, 1)
    for parameters in _LLAMA3:
        frequencies = rope_of(parameters, {"rope_theta": theta}, width, 1)
        if frequencies.shape == divisors.shape and np.allclose(plain / divisors, frequencies, rtol=1e-6, atol=0):
            return {"rope_theta": theta, "rope_scaling": parameters}
    raise UnsupportedError("the frequencies of its rotary embedding are not those of Llama 3")
