"""Checkpoints with random weights, made offline, and their tokenizers: every word is one token.

    python benchmarks/checkpoints.py gpt2|llama FOLDER

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
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)


def gpt2() -> PreTrainedModel:
    """GPT-2 small with room for long texts, float32, 136M parameters."""
    return GPT2LMHeadModel(GPT2Config(n_positions=16384))


def llama() -> PreTrainedModel:
    """A Llama of 309M parameters, bfloat16; four query heads share a key head."""
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


def save(model: PreTrainedModel, folder: Path) -> None:
    """Save a model and a tokenizer with as many words as its embedding has rows."""
    words = vocabulary(model.config.vocab_size)
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=words[0]).save_pretrained(folder)
    model.save_pretrained(folder)


if __name__ == "__main__":
    torch.manual_seed(0)
    save({"gpt2": gpt2, "llama": llama}[sys.argv[1]](), Path(sys.argv[2]))
