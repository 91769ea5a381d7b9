"""GGUF files, written by the gguf package as llama.cpp's converter has them (convert_hf_to_gguf.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

Kind = gguf.GGMLQuantizationType

PARTS = {
    "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "gate_proj": "ffn_gate", "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}  # fmt: skip


def write_gguf(
    path: Path,
    architecture: str,
    tensors: dict[str, np.ndarray],
    fields: dict[str, Any],
    tokenizer: Callable[[gguf.GGUFWriter], None],
    kind: Kind = Kind.F32,
    quantize: Callable[[np.ndarray], np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in fields.items():
        add = {float: writer.add_float32, int: writer.add_uint32, str: writer.add_string, bool: writer.add_bool}
        add[type(value)](f"{architecture}.{name}", value)
    tokenizer(writer)
    numbers = {}
    for name, array in tensors.items():
        stored = as_llama_cpp_has_it(architecture, name, array, fields)
        is_matrix = stored.ndim == 2 and kind != Kind.F32
        if not is_matrix:
            writer.add_tensor(name_of(name), np.ascontiguousarray(stored, np.float32))
            numbers[name] = array
            continue
        blocks = quantize(stored) if quantize else gguf.quants.quantize(np.ascontiguousarray(stored, np.float32), kind)
        writer.add_tensor(name_of(name), blocks, raw_dtype=kind)
        numbers[name] = as_transformers_has_it(architecture, name, gguf.quants.dequantize(blocks, kind), fields)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return numbers


def name_of(name: str) -> str:
    words = name.split(".")
    layer = next((f"blk.{word}." for word in words if word.isdigit()), "")
    return f"{layer}{PARTS[words[-2]]}.{words[-1]}"


def as_llama_cpp_has_it(architecture: str, name: str, array: np.ndarray, fields: dict[str, Any]) -> np.ndarray:
    if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
        heads = fields["attention.head_count" if "q_proj" in name else "attention.head_count_kv"]
        half = array.shape[0] // heads // 2
        order = [head * 2 * half + half * part + place for head in range(heads)
                 for place in range(half) for part in range(2)]  # fmt: skip
        return array[order]
    return array


def as_transformers_has_it(architecture: str, name: str, array: np.ndarray, fields: dict[str, Any]) -> np.ndarray:
    if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
        index = np.arange(len(array), dtype=np.float32)[:, None]
        return array[np.argsort(as_llama_cpp_has_it(architecture, name, index, fields)[:, 0])]
    return array
