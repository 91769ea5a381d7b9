"""GGUF files: model, numbers and tokenizer are those that transformers and sentencepiece find in them."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from conformance import stacked
from gguf_files import Kind, write_gguf
from refusals import refused
from rounding import of_weights
from running import Run
from tiny_tokenizers import STRINGS, save_tokenizer
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

import attncli
from attncli.engines.tokenize import open_tokenizer

TEXT = "time flies like an arrow"
ROTATED = {
    "context_length": 64, "embedding_length": 256, "block_count": 3, "feed_forward_length": 512,
    "attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip
SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
         "initializer_range": 0.03}  # fmt: skip
# The name of llama.cpp, transformers' configuration, and what the file says of it.
MODELS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", "LlamaConfig", SIZES, ROTATED | {"rope.dimension_count": 64, "rope.freq_base": 10000.0}),
    "mistral": ("llama", "MistralConfig", SIZES | {"sliding_window": 3}, ROTATED | {"attention.sliding_window": 3}),
    "llama with biases": ("llama", "LlamaConfig", SIZES | {"attention_bias": True}, ROTATED),
    "qwen2": ("qwen2", "Qwen2Config", SIZES, ROTATED | {"rope.freq_base": 10000.0}),
    "qwen3": ("qwen3", "Qwen3Config", SIZES | {"head_dim": 32},
              ROTATED | {"attention.key_length": 32, "attention.value_length": 32}),
}  # fmt: skip


def by_bytes(folder: Path, words: str, **more: np.ndarray) -> Callable[[gguf.GGUFWriter], None]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    pieces = [tokenizer.id_to_token(id_) for id_ in range(tokenizer.get_vocab_size())]
    merges = json.loads(tokenizer.to_str())["model"]["merges"]

    def write(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(words)
        writer.add_token_list(pieces)
        writer.add_token_types([3 if piece in special else 1 for piece in pieces])
        writer.add_token_merges([" ".join(pair) for pair in merges])
        writer.add_eos_token_id(pieces.index("<|endoftext|>"))
        for name, tensor in more.items():
            writer.add_tensor(name, tensor)

    return write


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("qwen2"), "qwen2")


def model_of(name: str, folder: Path, **more: Any) -> tuple[Any, dict[str, np.ndarray]]:
    _, config, sizes, _ = MODELS[name]
    torch.manual_seed(4)
    size = len(AutoTokenizer.from_pretrained(folder))
    made = getattr(transformers, config)(vocab_size=size, **(sizes | more))
    model = AutoModelForCausalLM.from_config(made, attn_implementation="eager").eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=0.5, std=0.2)
    tied = {key for key in model.all_tied_weights_keys if key == "lm_head.weight"}
    return model, {key: each.numpy() for key, each in model.state_dict().items() if key not in tied}


def known(model: Any, numbers: dict[str, np.ndarray], ids: list[int]) -> list[np.ndarray]:
    model.load_state_dict({name: torch.tensor(each) for name, each in numbers.items()}, strict=False)
    with torch.no_grad():
        return [layer[0].numpy() for layer in model(torch.tensor([ids]), output_attentions=True).attentions]


def same(path: Path, model: Any, numbers: dict[str, np.ndarray]) -> attncli.Trace:
    trace = attncli.inspect(TEXT, model=str(path), layer="all")
    expected = known(model, numbers, [token.id for token in trace.query_tokens])
    assert len(trace.layers) == len(expected)
    for layer, weights in zip(trace.layers, expected, strict=True):
        exact = of_weights(layer, SIZES["intermediate_size"])
        np.testing.assert_allclose(stacked(layer), weights, rtol=0, atol=exact)
    return trace


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_that_of_transformers(name: str, qwen2: Path, tmp_path: Path) -> None:
    architecture, _, _, fields = MODELS[name]
    model, tensors = model_of(name, qwen2)
    path = tmp_path / "model.gguf"
    numbers = write_gguf(path, architecture, tensors, fields, by_bytes(qwen2, "qwen2"))
    trace = same(path, model, numbers)
    assert trace.source.details == {"engine": "native"}  # its weights are plain numbers
    assert (trace.source.model, trace.source.layers) == (str(path), fields["block_count"])


# Where a block of 256 numbers has its scales, in float16; the gguf package itself quantizes to the others.
SCALES: dict[str, tuple[int, ...]] = {"BF16": (), "Q4_0": (), "Q4_1": (), "Q4_K": (0, 2), "Q6_K": (208,)}


@pytest.mark.parametrize("kind", SCALES)
def test_quantized_tensors_are_what_the_gguf_package_makes_of_them(kind: str, qwen2: Path, tmp_path: Path) -> None:
    _, size = gguf.GGML_QUANT_SIZES[Kind[kind]]

    def blocks(array: np.ndarray) -> np.ndarray:
        draw = np.random.default_rng(array.size)
        made = draw.integers(0, 256, (array.size // 256, size), dtype=np.uint8)
        for start in SCALES[kind]:
            scale = np.full((len(made), 1), 1e-5 if kind == "Q6_K" else 2e-5, np.float16)
            made[:, start : start + 2] = scale.view(np.uint8)
        return made.reshape(len(array), -1)

    model, tensors = model_of("llama", qwen2)
    path, own = tmp_path / "model.gguf", blocks if SCALES[kind] else None
    numbers = write_gguf(path, "llama", tensors, MODELS["llama"][3], by_bytes(qwen2, "qwen2"), Kind[kind], own)
    trace = same(path, model, numbers)
    assert trace.source.details.get("weights") == (None if kind == "BF16" else "GGUF, dequantized")


def test_the_frequencies_of_llama_3_are_found_in_the_file(qwen2: Path, tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192, "rope_theta": 500000.0}  # fmt: skip
    model, tensors = model_of("llama", qwen2, rope_parameters=rope)
    plain, _ = model_of("llama", qwen2, rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
    divisors = (plain.model.rotary_emb.inv_freq / model.model.rotary_emb.inv_freq).numpy()
    fields = MODELS["llama"][3] | {"rope.freq_base": 500000.0}

    def written(path: Path, divisors: np.ndarray) -> dict[str, np.ndarray]:
        tokenizer = by_bytes(qwen2, "qwen2", **{"rope_freqs.weight": divisors})
        return write_gguf(path, "llama", tensors, fields, tokenizer)

    same(tmp_path / "a.gguf", model, written(tmp_path / "a.gguf", divisors))
    written(tmp_path / "b.gguf", divisors * 2)
    with pytest.raises(attncli.AttnError, match="not those of Llama 3"):
        attncli.inspect(TEXT, model=str(tmp_path / "b.gguf"))


def file_with(path: Path, tokenizer: Callable[[gguf.GGUFWriter], None], size: int, architecture: str = "llama") -> str:
    tensors = {"model.embed_tokens.weight": np.zeros((size, 256), np.float32)}
    write_gguf(path, architecture, tensors, MODELS[architecture][3], tokenizer)
    return str(path)


@pytest.mark.parametrize(("family", "words"), [("qwen2", "qwen2"), ("gpt2", "gpt-2")])
def test_a_byte_level_tokenizer_is_that_of_transformers(family: str, words: str, tmp_path: Path) -> None:
    save_tokenizer(tmp_path, family)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    path = file_with(tmp_path / "model.gguf", by_bytes(tmp_path, words), len(tokenizer))
    opened = open_tokenizer(model=path)
    for text in STRINGS:
        if text.strip():
            assert [token.id for token in opened.tokenize(text).tokens] == tokenizer(text)["input_ids"], text


def test_a_sentencepiece_vocabulary_is_refused(attn: Run, qwen2: Path, tmp_path: Path) -> None:
    def write(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(["<unk>", "a"])
        writer.add_token_scores([0.0, -1.0])

    path = file_with(tmp_path / "model.gguf", write, 2)
    refused(attn("tokens", TEXT, "-m", path), 3, "'llama' of a GGUF file is none whose alphabet is bytes; give the")


def test_what_is_not_known_is_refused_in_a_sentence(attn: Run, qwen2: Path, tmp_path: Path) -> None:
    tensors = {"model.embed_tokens.weight": np.zeros((700, 256), np.float32)}
    for architecture, more, word in (
        ("gemma3", {}, "gemma3"),
        ("llama", {"new_field": 3}, "new_field"),
        ("llama", {"expert_count": 8}, "expert_count"),
        ("llama", {"rope.dimension_count": 32}, "rope.dimension_count"),
    ):
        write_gguf(tmp_path / "odd.gguf", architecture, tensors, ROTATED | more, by_bytes(qwen2, "qwen2"))
        refused(attn("inspect", TEXT, "-m", tmp_path / "odd.gguf"), 4, "GGUF", word)
    for tensor, code in (("blk.0.ffn_gate_inp.weight", 3), ("rope_factors_long.weight", 3), ("blk.0.attn_q.bias", 4)):
        tokenizer = by_bytes(qwen2, "qwen2", **{tensor: np.zeros(256, np.float32)})
        write_gguf(tmp_path / "tensor.gguf", "llama", model_of("llama", qwen2)[1], ROTATED, tokenizer)
        refused(attn("inspect", TEXT, "-m", tmp_path / "tensor.gguf"), code, tensor if code == 3 else "_proj.bias")
    path = file_with(tmp_path / "words.gguf", by_bytes(qwen2, "unheard-of"), 700)
    refused(attn("tokens", TEXT, "-m", path), 3, "unheard-of")


def test_the_file_of_a_folder_is_named_and_other_engines_are_refused(attn: Run, qwen2: Path, tmp_path: Path) -> None:
    path = file_with(tmp_path / "model.gguf", by_bytes(qwen2, "qwen2"), 700)
    refused(attn("inspect", TEXT, "-m", tmp_path), 3, str(path), "give the file: -m")
    for more in (["--engine", "transformers"], ["--engine", "verify"], ["--dtype", "bfloat16"], ["--generate", "2"]):
        refused(attn("inspect", TEXT, "-m", path, *more), 4, "is a GGUF file")
    refused(attn("inspect", TEXT, "-m", path, "--base", tmp_path), 2, "--base applies to an adapter")
    for command in ("inspect", "tokens"):
        refused(attn(command, TEXT, "-m", "missing.gguf"), 3, "no such file")
    refused(attn("check", "-m", path), 3, "is a GGUF file", "give a checkpoint's folder")
    refused(attn("mask", "model", "-m", path, TEXT), 4, "is a GGUF file, and the native engine does not compute it")


def test_a_missing_package_is_named(attn: Run, qwen2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, tensors = model_of("llama", qwen2)
    for kind in (Kind.F16, Kind.Q8_0):
        write = (tensors, MODELS["llama"][3], by_bytes(qwen2, "qwen2"))
        write_gguf(tmp_path / f"{kind.name}.gguf", "llama", *write, kind)
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert attn("inspect", TEXT, "-m", tmp_path / "F16.gguf").code == 0
    refused(attn("inspect", TEXT, "-m", tmp_path / "Q8_0.gguf"), 3, "install gguf")
