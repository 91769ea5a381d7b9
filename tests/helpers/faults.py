"""Ports of checkpoints with planted faults: a decoder in plain NumPy, right by default, and what each port gets wrong.

Nothing here is of attncli. The right port agrees with transformers; see tests/analysis/agreement/test_faults.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shutil import copytree
from typing import Any, Literal

import numpy as np
from safetensors.numpy import load_file, save_file

Array = np.ndarray[Any, Any]
Captured = dict[str, Array]  # arrays of a layer, by their names in a capture
Rope = Callable[[int], tuple[Array, float]]  # from a width: radians per position of each pair, and a factor


# --- the decoder ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PortAttention:
    """Attention of one layer, as a port computes it."""

    rope: Rope
    rotated: int  # how much of a head's width
    scale: float
    is_interleaved: bool = False  # pairs are dimensions 2i and 2i + 1, and not i and i + half
    shift: int = 0  # of the positions
    softcap: float = 0
    norms_q: bool = True  # where the model has such a norm
    norms_k: bool = True
    has_bias: bool = True  # where the model has one
    key_heads: Callable[[int, int], Array] = lambda heads, kv: np.arange(heads) // (heads // kv)
    heads: tuple[int, ...] = ()  # order of the query heads; empty is their own
    weights: int | None = None  # layer whose weights are read; None is its own
    spoilt: str = ""  # projection whose weights are noisy
    window: int | None = None
    padding: int = 0  # keys at the end that are hidden
    padded: int = 0  # keys at the start that are hidden; their own queries see every key
    document: int = 0  # queries from here on do not attend to the keys before it
    is_causal: bool = True
    slopes: bool = False  # ALiBi
    expands: bool = False  # writes a key head for each query head


def rope(width: int, base: float = 10_000.0, kind: str = "default", factor: float = 1.0) -> tuple[Array, float]:
    """Frequencies as in the papers: linear (Chen et al. 2023), llama3 (2024), YaRN (Peng et al. 2023)."""
    frequencies = base ** -(np.arange(0, width, 2) / width)
    trained = 16  # positions before the stretch
    if kind == "linear":
        return frequencies / factor, 1.0
    if kind == "llama3":
        low, high, waves = 1.0, 4.0, 2 * np.pi / frequencies
        smooth = np.clip((trained / waves - low) / (high - low), 0, 1)
        return (1 - smooth) * frequencies / factor + smooth * frequencies, 1.0
    if kind == "yarn":
        ends = [width * np.log(trained / (turns * 2 * np.pi)) / (2 * np.log(base)) for turns in (32, 1)]
        low, high = max(np.floor(ends[0]), 0), min(np.ceil(ends[1]), width - 1)
        ramp = np.clip((np.arange(width // 2) - low) / max(high - low, 1e-3), 0, 1)
        return ramp * frequencies / factor + (1 - ramp) * frequencies, 0.1 * np.log(factor) + 1
    return frequencies, 1.0


class Port:
    """A Llama-like (`model_type` llama, qwen3) or GPT-NeoX checkpoint, computed in float32."""

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, Array]) -> None:
        self.config, self.tensors = config, tensors
        self.is_neox = config["model_type"] == "gpt_neox"
        self.heads, self.layers = config["num_attention_heads"], config["num_hidden_layers"]
        self.kv = config.get("num_key_value_heads", self.heads)
        self.width = config.get("head_dim") or config["hidden_size"] // self.heads
        how = config["rope_parameters"]
        part = int(self.width * how.get("partial_rotary_factor", 1))
        kinds = config.get("layer_types") or ["full_attention"] * self.layers
        self.right = [
            PortAttention(
                partial(rope, base=how["rope_theta"]),
                part,
                self.width**-0.5,
                window=config["sliding_window"] if kind == "sliding_attention" else None,
            )
            for kind in kinds
        ]

    @classmethod
    def of(cls, folder: Path) -> Port:
        return cls(json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors"))

    def tensor(self, name: str, missing: Array | None = None) -> Array:
        name = ("gpt_neox." if self.is_neox else "model.") + name
        return np.float32(self.tensors[name]) if missing is None or name in self.tensors else missing

    def linear(self, x: Array, name: str, has_bias: bool = True) -> Array:
        product = x @ self.tensor(f"{name}.weight").T
        return product + self.tensor(f"{name}.bias", np.float32(0)) if has_bias else product

    def norm(self, x: Array, name: str) -> Array:
        weight = self.tensor(f"{name}.weight")
        if self.is_neox:
            x = x - x.mean(-1, keepdims=True)
            root = np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(self.config["layer_norm_eps"]))
            return x / root * weight + self.tensor(f"{name}.bias")
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(self.config["rms_norm_eps"])) * weight

    def run(
        self, ids: list[int], how: Sequence[PortAttention], dtype: Callable[[Array], Array] = np.float32
    ) -> list[Captured]:
        """Return the arrays of each layer, and the hidden states behind the last; each result rounded by `dtype`."""
        x = dtype(self.tensor("embed_in.weight" if self.is_neox else "embed_tokens.weight")[ids])
        captured: list[Captured] = []
        for layer, attention in enumerate(how):
            arrays = self.attend(x, layer, attention, dtype)
            captured.append(arrays)
            name = f"layers.{layer if attention.weights is None else attention.weights}."
            after = self.norm(x if self.is_neox else x + arrays["output"], name + "post_attention_layernorm")
            x = dtype(x + arrays["output"] + self.feed_forward(dtype(after), name + "mlp."))
        return [*captured, {"input": x}]

    def attend(self, x: Array, layer: int, how: PortAttention, dtype: Callable[[Array], Array]) -> Captured:
        name = f"layers.{layer if how.weights is None else how.weights}."
        q, k, v = self.project(dtype(self.norm(x, name + "input_layernorm")), name, how)
        positions = np.arange(len(x)) + how.shift
        q, k, v = dtype(turned(q, positions, how)), dtype(turned(k, positions, how)), dtype(v)
        if how.heads:
            q = q[list(how.heads)]
        of_heads = how.key_heads(self.heads, self.kv)
        scores = np.einsum("hqd,hkd->hqk", q, k[of_heads]) * np.float32(how.scale)
        rows, keys = np.mgrid[: len(x), : len(x)]
        if how.slopes:
            slopes = 2.0 ** (-8 * np.arange(1, self.heads + 1) / self.heads)
            scores = scores - (slopes[:, None, None] * (rows - keys)).astype(np.float32)
        if how.softcap:
            scores = how.softcap * np.tanh(scores / how.softcap)
        allowed = (keys <= rows) | (not how.is_causal)
        allowed &= (keys > rows - how.window) if how.window else True
        allowed &= (keys < len(x) - how.padding) & ((rows < how.document) | (keys >= how.document))
        allowed = (allowed & (keys >= how.padded)) | (rows < how.padded)
        scores = np.where(allowed, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        heads = np.einsum("hqk,hkd->hqd", dtype(weights), v[of_heads]).swapaxes(0, 1).reshape(len(x), -1)
        output = dtype(self.linear(dtype(heads), name + ("attention.dense" if self.is_neox else "self_attn.o_proj")))
        k, v = (k[of_heads], v[of_heads]) if how.expands else (k, v)
        return {"input": x, "q": q, "k": k, "v": v, "output": output}

    def project(self, x: Array, name: str, how: PortAttention) -> tuple[Array, ...]:
        if self.is_neox:
            joint = self.linear(x, name + "attention.query_key_value", how.has_bias)
            parts = joint.reshape(len(x), self.heads, 3, self.width).transpose(2, 1, 0, 3)
        else:
            packed = [self.linear(x, f"{name}self_attn.{part}_proj", how.has_bias) for part in "qkv"]
            parts = [array.reshape(len(x), -1, self.width).swapaxes(0, 1) for array in packed]
        parts = dict(zip("qkv", parts, strict=True))
        if how.spoilt:
            noise = np.random.default_rng(0).standard_normal((parts[how.spoilt].shape[-1],) * 2)
            parts[how.spoilt] = np.float32(parts[how.spoilt] @ (np.eye(len(noise)) + 0.05 * noise))
        for part, norms in (("q", how.norms_q), ("k", how.norms_k)):
            if norms and f"model.{name}self_attn.{part}_norm.weight" in self.tensors:
                parts[part] = self.norm(parts[part], f"{name}self_attn.{part}_norm")
        return tuple(parts[part] for part in "qkv")

    def feed_forward(self, x: Array, name: str) -> Array:
        if self.is_neox:
            return self.linear(gelu(self.linear(x, name + "dense_h_to_4h")), name + "dense_4h_to_h")
        gate = self.linear(x, name + "gate_proj")
        return self.linear(gate / (1 + np.exp(-gate)) * self.linear(x, name + "up_proj"), name + "down_proj")


def gelu(x: Array) -> Array:
    from math import erf

    return np.float32(x * (1 + np.vectorize(erf)(x / 2**0.5)) / 2)


def turned(x: Array, positions: Array, how: PortAttention) -> Array:
    """Rotate the first dimensions of queries or keys (Su et al. 2021)."""
    if not how.rotated:
        return x
    frequencies, factor = how.rope(how.rotated)
    angles = np.float32(positions[:, None]) * np.float32(frequencies)
    cos, sin = np.float32(np.cos(angles) * factor), np.float32(np.sin(angles) * factor)
    turning, rest = x[..., : how.rotated], x[..., how.rotated :]
    if how.is_interleaved:
        a, b = turning[..., ::2], turning[..., 1::2]
        both = np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(turning.shape)
    else:
        a, b = np.split(turning, 2, axis=-1)
        both = np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
    return np.concatenate([both, rest], -1)


def bfloat16(x: Array) -> Array:
    """Round to the nearest bfloat16, and to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def float16(x: Array) -> Array:
    return np.float32(np.float16(x))


# --- captures -------------------------------------------------------------------------------------------------------


def write_capture(path: Path, layers: list[Captured], ids: list[int], names: str = "qkv", **metadata: str) -> Path:
    """Write q, k and v of each layer, or `input` alone, as an engine would."""
    wanted = list(names) if names == "qkv" else [names]
    tensors = {
        f"layers.{index}.{name}": np.ascontiguousarray(layer[name], np.float32)
        for index, layer in enumerate(layers)
        for name in wanted
        if name in layer
    }
    head = {"format": "attncli.capture/1", "rotated": "after", "dtype": "float32"} | metadata
    save_file(tensors | {"tokens": np.array(ids)}, path, metadata=head)
    return path


# --- checkpoints ----------------------------------------------------------------------------------------------------


def save_normed(folder: Path) -> Path:
    """Save a small Qwen3: norms of queries and keys, two query heads a key head, a window in the upper layers."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=128, hidden_size=48, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, use_sliding_window=True, sliding_window=5, max_window_layers=2,
        max_position_embeddings=64, initializer_range=0.2,
    )  # fmt: skip
    return _save(Qwen3ForCausalLM, config, folder)


def save_tiny(name: str, folder: Path) -> Path:
    """Save a small model of another family."""
    from architectures import tiny_config
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    more = {"attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 64} if name == "gemma2" else {}
    config = tiny_config(name)
    for field, value in ({"initializer_range": 0.2} | more).items():
        setattr(config, field, value)
    build = AutoModelForSeq2SeqLM if name == "t5" else AutoModelForCausalLM
    return _save(build.from_config, config, folder)


def save_biased(folder: Path) -> Path:
    """Save a small GPT-NeoX: biases, a key head a query head, half of a head rotated."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(
        vocab_size=128, hidden_size=64, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        max_position_embeddings=64, initializer_range=0.2,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
    )  # fmt: skip
    return _save(GPTNeoXForCausalLM, config, folder)


def _save(build: Any, config: Any, folder: Path) -> Path:
    import torch
    from conformance import save_for_auto

    torch.manual_seed(0)
    model = build(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # norms are ones and biases zeros otherwise
                parameter += 0.3 * torch.randn_like(parameter)
    return save_for_auto(model, folder)


def smollm() -> Port:
    """Return SmolLM2 as its GGUF file has it, dequantized by the package gguf."""
    import gguf
    from gguf_files import PARTS, as_transformers_has_it
    from smollm import smollm_file

    reader = gguf.GGUFReader(smollm_file())
    ours, tensors = {theirs: name for name, theirs in PARTS.items()}, {}
    config = {
        "model_type": "llama", "num_attention_heads": 9, "num_key_value_heads": 3, "num_hidden_layers": 30,
        "hidden_size": 576, "rms_norm_eps": 1e-5, "rope_parameters": {"rope_theta": 100_000.0},
    }  # fmt: skip
    fields = {"attention.head_count": 9, "attention.head_count_kv": 3}
    for tensor in reader.tensors:
        *block, part, end = tensor.name.split(".")
        inside = "mlp" if part.startswith("ffn_") and part != "ffn_norm" else "self_attn"
        where = "" if not block else f"layers.{block[1]}." + (f"{inside}." if "norm" not in part else "")
        name = f"model.{where}{ours[part]}.{end}"
        numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        tensors[name] = as_transformers_has_it("llama", name, numbers, fields)
    return Port(config, tensors)


# --- faults ---------------------------------------------------------------------------------------------------------

IDS = [7, 23, 5, 99, 23, 64, 12, 7, 88, 41, 3, 120, 55, 9]  # what a port of a small checkpoint reads
TEXT = " ".join(f"w{id_}" for id_ in IDS)


@dataclass(frozen=True)
class Fault:
    """A fault of a port, and the answer that is right."""

    model: str  # `normed`, `biased` or `smollm`
    changes: Mapping[str, Any]  # fields of `PortAttention`
    layer: int | None  # that has them; None is every layer
    stage: str  # that parts first
    words: str  # pattern of the cause, with its value
    # what hidden states alone show: nothing, as rotation is relative; the layer, as they hold no weights; or the cause
    states: Literal["nothing", "layer", "cause"] = "cause"
    reads: Callable[[list[int]], list[int]] = list  # the ids that the port reads

    @property
    def first(self) -> int:
        return self.layer or 0

    def run(self, port: Port, ids: list[int], also: Sequence[Fault] = ()) -> tuple[list[Captured], list[int]]:
        """Return what a port with the fault, and with others too, captures, and the ids that it read."""
        how = list(port.right)
        for fault in (self, *also):
            for index in range(port.layers):
                if fault.layer in (None, index):
                    how[index] = replace(how[index], **fault.changes)
            if fault.changes.get("weights") is not None:  # the other layer has those of this one
                how[fault.changes["weights"]] = replace(how[fault.changes["weights"]], weights=fault.layer)
        ids = self.reads(ids)
        return port.run(ids, how), ids


def tiled(heads: int, kv: int) -> Array:
    """Key heads 0, 1, 0, 1 in place of 0, 0, 1, 1."""
    return np.arange(heads) % kv


def base(of: float, **more: Any) -> dict[str, Any]:
    return {"rope": partial(rope, base=of, **more)}


ROTATION, PROJECTIONS, SCORES = "rotation", "projections", "scores|scale|softcap|bias"
NEOX = "gpt_neox.layers.1.attention.query_key_value."
FAULTS = {
    "another token": Fault("normed", {}, None, "token", r"12\b.*\b64", reads=lambda ids: [*ids[:5], 12, *ids[6:]]),
    "a BOS before": Fault("biased", {}, None, "token", r"BOS|one more|\b1\b", reads=lambda ids: [1, *ids]),
    "positions from 1": Fault("normed", {"shift": 1}, None, "position", r"\b1\b.*\b0\b", states="nothing"),
    "positions shifted in a layer": Fault("biased", {"shift": 3}, 1, "position", r"\b3\b", states="nothing"),
    "base": Fault("smollm", base(10_000.0), None, ROTATION, r"base 10,?000\b.*100,?000"),
    "base of a layer": Fault("normed", base(500.0), 1, ROTATION, r"base 500\b.*10,?000"),
    "interleaved": Fault("normed", {"is_interleaved": True}, None, ROTATION, "interleaved"),
    "partial": Fault("biased", {"rotated": 4}, None, ROTATION, r"\b4\b.*\b8\b"),
    "whole": Fault("biased", {"rotated": 16}, 2, ROTATION, r"\b16\b.*\b8\b"),
    "none": Fault("normed", {"rotated": 0}, 1, f"{ROTATION}|positions", r"not rotated|no rotation|none|\b0\b"),
    "linear": Fault("normed", base(1e4, kind="linear", factor=2.0), None, ROTATION, r"linear.*\b2\b"),
    "llama3": Fault("smollm", base(1e5, kind="llama3", factor=8.0), None, ROTATION, r"llama3.*\b8\b"),
    "yarn": Fault("smollm", base(1e5, kind="yarn", factor=4.0), None, ROTATION, r"yarn.*\b4\b"),
    "scale": Fault("normed", {"scale": 1 / 16}, 1, SCORES, r"0?\.0625\b.*0?\.25\b"),
    "softcap": Fault("biased", {"softcap": 2.0}, 1, SCORES, r"softcap.*\b2\b"),
    "softcap of layer 2": Fault("biased", {"softcap": 3.0}, 2, SCORES, r"softcap.*\b3\b"),
    "no q norm": Fault("normed", {"norms_q": False}, 1, "norm", r"norm of q (?!and)|q norm|query norm"),
    "no k norm": Fault("normed", {"norms_k": False}, 2, "norm", r"norm of k|k norm|key norm"),
    "no bias": Fault("biased", {"has_bias": False}, 1, PROJECTIONS, "bias"),
    "tiled": Fault("normed", {"key_heads": tiled}, 1, SCORES, r"tiled|interleaved"),
    "tiled and written": Fault("normed", {"key_heads": tiled, "expands": True}, 1, ".*", r"tiled|interleaved"),
    "heads permuted": Fault(
        "biased", {"heads": (2, 0, 3, 1)}, 1, ".*", r"heads.*(2, ?0, ?3, ?1|1, ?3, ?0, ?2)", states="layer"
    ),
    "layers exchanged": Fault("biased", {"weights": 2}, 1, PROJECTIONS, r"layers? 1 and 2|layer 2|exchanged"),
    "other weights of k": Fault("normed", {"spoilt": "k"}, 1, PROJECTIONS, r"weights.*\bk\b", states="layer"),
    "no window": Fault("normed", {"window": None}, 2, "mask", r"window\(5\)|window of 5|window 5"),
    "window off by one": Fault("normed", {"window": 6}, 2, "mask", r"window\(6\)"),
    "padding": Fault("biased", {"padding": 3}, None, "mask", r"pad\(right=3\)|keys\("),
    "padding on the left": Fault("biased", {"padded": 3}, None, "mask", r"pad\(left=3\)"),
    "documents": Fault("biased", {"document": 6}, 1, "mask", r"docs\(6|document"),
    "not causal": Fault("biased", {"is_causal": False}, 1, "mask", "full|bidirectional|not causal"),
    "ALiBi": Fault("biased", {"slopes": True}, 1, SCORES, "ALiBi"),
}


# --- faults of a folder ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """What a checkpoint consists of, to be edited."""

    config: dict[str, Any]
    tensors: dict[str, Array]
    tokenizer: dict[str, Any]


Edit = Callable[[Parts], None]


def edited(folder: Path, target: Path, edit: Edit) -> Path:
    """Copy a checkpoint, with another configuration, other weights or another tokenizer."""
    copytree(folder, target)
    names = "config.json", "model.safetensors", "tokenizer.json"
    config, weights, tokenizer = (target / name for name in names)
    parts = Parts(json.loads(config.read_text()), load_file(weights), json.loads(tokenizer.read_text()))
    edit(parts)
    config.write_text(json.dumps(parts.config))
    tokenizer.write_text(json.dumps(parts.tokenizer))
    save_file({name: np.ascontiguousarray(array) for name, array in parts.tensors.items()}, weights)
    return target


def sets(**values: Any) -> Edit:
    """Return the edit that sets fields of a configuration; those of the rotation stand in `rope_parameters`."""

    def edit(parts: Parts) -> None:
        rotation = {name: values[name] for name in values if name in _OF_ROTATION}
        if rotation:
            parts.config["rope_parameters"] |= rotation
        parts.config.update({name: value for name, value in values.items() if name not in rotation})

    return edit


_OF_ROTATION = {
    "rope_theta", "rope_type", "factor", "partial_rotary_factor", "low_freq_factor", "high_freq_factor",
    "original_max_position_embeddings",
}  # fmt: skip


def changes(names: str, change: Callable[[Array], Array]) -> Edit:
    """Return the edit that changes the tensors whose names match a pattern."""

    def edit(parts: Parts) -> None:
        matching = [name for name in parts.tensors if re.search(names, name)]
        assert matching, [*parts.tensors]
        parts.tensors.update({name: change(parts.tensors[name]) for name in matching})

    return edit


def exchange(parts: Parts) -> None:
    """Exchange the weights of layers 1 and 2."""
    tensors = parts.tensors
    for name in [name for name in tensors if ".layers.1." in name]:
        other = name.replace(".layers.1.", ".layers.2.")
        tensors[name], tensors[other] = tensors[other], tensors[name]


def swap_words(parts: Parts) -> None:
    words = parts.tokenizer["model"]["vocab"]
    words["w64"], words["w12"] = words["w12"], words["w64"]


def add_bos(parts: Parts) -> None:
    """Add `<pad>`, whose id is 1, before each text."""
    processor = parts.tokenizer["post_processor"]
    processor["single"].insert(0, {"SpecialToken": {"id": "<pad>", "type_id": 0}})
    processor["special_tokens"] = {"<pad>": {"id": "<pad>", "ids": [1], "tokens": ["<pad>"]}}


def permuted(weight: Array) -> Array:
    """Permute the query heads of GPT-NeoX, of which each has its thirds."""
    split = weight.copy().reshape(4, 3, 16, -1)
    split[:, 0] = split[[2, 0, 3, 1], 0]
    return split.reshape(weight.shape)


def interleaved(weight: Array, width: int = 8) -> Array:
    """Permute rows as Meta's checkpoints and GGUF files of Llama have them: dimensions i and i + half, side by side."""
    return weight.reshape(-1, 2, width // 2, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def noisy(weight: Array) -> Array:
    return weight + 0.01 * np.random.default_rng(0).standard_normal(weight.shape).astype(weight.dtype)


Q_AND_K = r"layers\.\d+\.self_attn\.[qk]_proj\.weight"
LLAMA3 = sets(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
)
FOLDERS: dict[str, tuple[Fault, Edit]] = {
    "another token": (Fault("normed", {}, 0, "token", r"token ids 12 at 5 .*64 at 5"), swap_words),
    "a BOS before": (Fault("biased", {}, 0, "token", r"token ids 1 at the start .*7"), add_bos),
    "positions from 2": (
        Fault("gpt2", {}, 0, "position", r"positions 2\.\.15 instead of 0\.\.13"),
        changes("wpe", lambda table: np.roll(table, -2, axis=0)),
    ),
    "embedding": (Fault("llama", {}, 0, "input", "embedding or its norm changed"), changes("embed_tokens", noisy)),
    "base": (Fault("normed", {}, 0, ROTATION, r"base 500\b.*10,?000"), sets(rope_theta=500.0)),
    "base of the layers with a window": (
        Fault("gemma3_text", {}, 0, ROTATION, r"base 20,?000\b.*10,?000"),
        lambda parts: parts.config["rope_parameters"]["sliding_attention"].update(rope_theta=20_000.0),
    ),
    "partial": (Fault("biased", {}, 0, ROTATION, r"\b4\b.*\b8\b"), sets(partial_rotary_factor=0.25)),
    "whole": (Fault("biased", {}, 0, ROTATION, r"\b16\b.*\b8\b"), sets(partial_rotary_factor=1.0)),
    "linear": (Fault("normed", {}, 0, ROTATION, r"linear.*\b2\b"), sets(rope_type="linear", factor=2.0)),
    "llama3": (Fault("normed", {}, 0, ROTATION, r"llama3 8 instead of none"), LLAMA3),
    "yarn": (Fault("normed", {}, 0, ROTATION, r"yarn.*\b4\b"), sets(rope_type="yarn", factor=4.0)),
    "rows interleaved": (
        Fault("llama", {}, 0, PROJECTIONS, "rows of q and k interleaved instead of half-split"),
        changes(Q_AND_K, interleaved),
    ),
    "no window": (
        Fault("normed", {}, 2, "mask", r"window\(5\)"),
        sets(use_sliding_window=False, layer_types=["full_attention"] * 4),
    ),
    "window off by one": (Fault("normed", {}, 2, "mask", r"window\(6\)"), sets(sliding_window=6)),
    "no bias": (Fault("biased", {}, 1, PROJECTIONS, "bias"), changes(NEOX + "bias", np.zeros_like)),
    "no bias of the output": (
        Fault("biased", {}, 0, "output", "output projection.s weights changed"),
        changes(r"attention\.dense\.bias", np.zeros_like),
    ),
    "other weights": (
        Fault("normed", {}, 1, PROJECTIONS, "projection weights of k changed"),
        changes(r"layers.1.*k_proj", noisy),
    ),
    "other norm of q": (
        Fault("normed", {}, 1, "norm", "norm of q changed"),
        changes(r"layers.1.*q_norm", noisy),
    ),
    "other norm of the input": (
        Fault("llama", {}, 1, "input", "norm of the input changed"),
        changes("layers.1.input_layernorm", noisy),
    ),
    "other epsilon": (Fault("llama", {}, 0, "input", "norm of the input changed"), sets(rms_norm_eps=0.1)),
    "another activation": (Fault("llama", {}, 0, "output", "feed-forward"), sets(hidden_act="gelu")),
    "heads permuted": (
        Fault("biased", {}, 1, ".*", r"heads of q 2,0,3,1 instead of 0,1,2,3"),
        changes(NEOX + "(weight|bias)", permuted),
    ),
    "key heads permuted": (
        Fault("llama", {}, 0, ".*", r"heads of k and v 1,0 instead of 0,1"),
        changes(r"[kv]_proj\.weight", lambda weight: np.roll(weight, len(weight) // 2, axis=0)),
    ),
    "layers exchanged": (Fault("biased", {}, 1, PROJECTIONS, r"layers? 1 and 2|layer 2|exchanged"), exchange),
    "no norms": (
        Fault("qwen3", {}, 0, "norm", "norm of q and k missing"),
        lambda parts: parts.config.update(model_type="llama", architectures=["LlamaForCausalLM"]),
    ),
    "scale": (Fault("gemma2", {}, 0, SCORES, r"scale 0?\.25\b"), sets(query_pre_attn_scalar=16)),
    "no scale": (Fault("gpt2", {}, 0, SCORES, r"scale 1\b"), sets(scale_attn_weights=False)),
    "softcap": (Fault("gemma2", {}, 0, SCORES, r"softcap 2\b.*5\b"), sets(attn_logit_softcapping=2.0)),
    "no softcap": (Fault("gemma2", {}, 0, SCORES, r"softcap none.*5\b"), sets(attn_logit_softcapping=None)),
    "no sinks": (
        Fault("gpt_oss", {}, 1, "sinks|weights", "sinks ignored instead of used"),
        changes("layers.1.self_attn.sinks", lambda sinks: np.full_like(sinks, -1e4)),
    ),
    "other sinks": (
        Fault("gpt_oss", {}, 1, "sinks|weights", "sinks changed"),
        changes("layers.1.self_attn.sinks", noisy),
    ),
    "no relative bias": (
        Fault("t5", {}, 0, SCORES, "bias none instead of relative"),
        changes("encoder.*relative", np.zeros_like),
    ),
    "other relative bias": (
        Fault("t5", {}, 0, SCORES, r"score bias changed"),
        changes("encoder.*relative", noisy),
    ),
}
