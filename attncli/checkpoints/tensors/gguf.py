"""The tensors of a GGUF file by the names, and in the order of rows, that they have in a checkpoint of transformers.

What llama.cpp's converter does to them is undone:
<https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py>.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attncli.checkpoints.tensors import Stored
from attncli.checkpoints.tensors.gguf_file import GgufFile
from attncli.files import to_float32

_Array = np.ndarray[Any, Any]
_LAYER = re.compile(r"blk\.(\d+)\.")

_OF_DECODERS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "model.layers.{}.input_layernorm",
    "attn_q": "model.layers.{}.self_attn.q_proj",
    "attn_k": "model.layers.{}.self_attn.k_proj",
    "attn_v": "model.layers.{}.self_attn.v_proj",
    "attn_output": "model.layers.{}.self_attn.o_proj",
    "attn_q_norm": "model.layers.{}.self_attn.q_norm",
    "attn_k_norm": "model.layers.{}.self_attn.k_norm",
    "ffn_norm": "model.layers.{}.post_attention_layernorm",
    "ffn_gate": "model.layers.{}.mlp.gate_proj",
    "ffn_up": "model.layers.{}.mlp.up_proj",
    "ffn_down": "model.layers.{}.mlp.down_proj",
}
_OF_LATER_GEMMAS = _OF_DECODERS | {
    "post_attention_norm": "model.layers.{}.post_attention_layernorm",
    "ffn_norm": "model.layers.{}.pre_feedforward_layernorm",
    "post_ffw_norm": "model.layers.{}.post_feedforward_layernorm",
}
_OF_GPT2 = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "attn_norm": "transformer.h.{}.ln_1",
    "attn_qkv": "transformer.h.{}.attn.c_attn",
    "attn_output": "transformer.h.{}.attn.c_proj",
    "ffn_norm": "transformer.h.{}.ln_2",
    "ffn_up": "transformer.h.{}.mlp.c_fc",
    "ffn_down": "transformer.h.{}.mlp.c_proj",
}
NAMES: dict[str, Mapping[str, str]] = {
    "llama": _OF_DECODERS,
    "qwen2": _OF_DECODERS,
    "qwen3": _OF_DECODERS,
    "gemma": _OF_DECODERS,
    "gemma2": _OF_LATER_GEMMAS,
    "gemma3": _OF_LATER_GEMMAS,
    "gpt2": _OF_GPT2,
}
FREQUENCIES = "rope_freqs.weight"  # which the configuration is made of; see `attncli.engines.numpy.gguf_config`


class _GgufTensor(NamedTuple):
    """What a tensor of a checkpoint is read from: the tensor's name in the file, and what undoes the conversion."""

    name: str
    shape: tuple[int, ...]
    undo: Callable[[_Array], _Array] | None = None


class Gguf:
    """The tensors of a GGUF file; see `attncli.checkpoints.tensors.Store`.

    Args:
        file: whose architecture is one of `NAMES`.
    """

    def __init__(self, file: GgufFile) -> None:
        file.check_tensors()
        self._file = file
        self.form = "GGUF, dequantized" if file.is_quantized else ""
        self._sources = dict(_source(file, name) for name in file.shapes if name != FREQUENCIES)
        self.names = self._sources.keys()

    def stored(self, name: str) -> Stored:
        """See `attncli.checkpoints.tensors.Store.stored`."""
        source = self._sources[name]
        return Stored("F32" if source.undo is _less_one else self._file.dtype(source.name), source.shape)

    def prepare(self, names: Collection[str]) -> None:
        """See `attncli.checkpoints.tensors.Store.prepare`; it is all here."""

    def read(self, name: str) -> _Array:
        """See `attncli.checkpoints.tensors.Store.read`."""
        source = self._sources[name]
        array = self._file.read(source.name)
        return array if source.undo is None else source.undo(array)

    def rows(self, name: str, indices: Sequence[int]) -> _Array:
        """See `attncli.checkpoints.tensors.Store.rows`."""
        source = self._sources[name]
        return self._file.read(source.name, indices) if source.undo is None else self.read(name)[list(indices)]


def _source(file: GgufFile, name: str) -> tuple[str, _GgufTensor]:
    """Return what a tensor is called in a checkpoint, and how it is read."""
    architecture, shape = file.metadata["general.architecture"], file.shapes[name]
    layer = _LAYER.match(name)
    part, _, kind = name[layer.end() if layer else 0 :].rpartition(".")
    known = NAMES[architecture].get(part)
    if known is None or ("{}" in known) != bool(layer):
        raise file.damaged(f"it has a tensor {name}, which no {architecture} has")
    full_name = f"{known.format(layer.group(1)) if layer else known}.{kind}"
    undo: Callable[[_Array], _Array] | None = None
    if architecture == "llama" and part in ("attn_q", "attn_k"):
        heads = file.metadata.get("llama.attention.head_count")
        if part == "attn_k":
            heads = file.metadata.get("llama.attention.head_count_kv", heads)
        if type(heads) is not int or heads < 1 or shape[0] % (2 * heads):
            raise file.damaged(f"{name} has {shape[0]} rows for {heads!r} heads")
        undo = partial(_in_halves, heads=heads)
    elif architecture.startswith("gemma") and part.endswith("norm"):
        undo = _less_one
    elif architecture == "gpt2" and known.rpartition(".")[2].startswith("c_") and kind == "weight":
        undo, shape = np.transpose, shape[::-1]
    return full_name, _GgufTensor(name, shape, undo)


def _in_halves(array: _Array, heads: int) -> _Array:
    """Return the rows of queries or keys as transformers rotates them: a half of each head with the other.

    The file has the two rows that are rotated together side by side.
    """
    pairs = array.reshape(heads, -1, 2, *array.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)


def _less_one(array: _Array) -> _Array:
    """Return the weights of a norm as Gemma's checkpoints have them: their distance from 1."""
    return to_float32(array) - np.float32(1)
