"""Checkpoints with random weights, made offline, and their tokenizers: every word is one token.

    python benchmarks/checkpoints.py gpt2|llama|llama-135m|llama-2b FOLDER

The benchmark runs this in a process of its own, so that it stays small itself (see ``measure.peak``).
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from texts import vocabulary
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)


def gpt2() -> PreTrainedModel:
    """GPT-2 small with room for long texts, float32, 136M parameters."""
    return GPT2LMHeadModel(GPT2Config(n_positions=16384))


SIZES: dict[str, tuple[int, ...]] = {  # width, that of the feed-forward network, layers, heads, key heads, vocabulary
    "llama": (1024, 4096, 16, 16, 4, 32000),  # 309M parameters
    "llama-135m": (576, 1536, 30, 9, 3, 49152),  # as SmolLM2 has them, with a head that is its embedding
    "llama-2b": (2560, 6912, 27, 20, 4, 32000),  # 1,996M parameters, 4.0 GB on the disk
}


def llama(name: str) -> PreTrainedModel:
    """Return a Llama of these sizes, in bfloat16."""
    names = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "vocab_size",
    )  # fmt: skip
    sizes = dict(zip(names, SIZES[name], strict=True))
    config = LlamaConfig(max_position_embeddings=4096, tie_word_embeddings=name == "llama-135m", **sizes)
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def save(model: PreTrainedModel, folder: Path) -> None:
    """Save a model and a tokenizer with as many words as its embedding has rows."""
    words = vocabulary(model.config.vocab_size)
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=words[0]).save_pretrained(folder)
    model.save_pretrained(folder)


if __name__ == "__main__":
    torch.manual_seed(0)
    save(gpt2() if sys.argv[1] == "gpt2" else llama(sys.argv[1]), Path(sys.argv[2]))
