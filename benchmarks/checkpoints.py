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


def llama() -> PreTrainedModel:
    """A Llama of 309M parameters, bfloat16; four query heads share a key head."""
    return _llama(
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=4096,
    )


def llama_135m() -> PreTrainedModel:
    """A Llama of 135M parameters, as SmolLM2 has them, bfloat16; three query heads share a key head."""
    return _llama(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
    )


def llama_2b() -> PreTrainedModel:
    """A Llama of 1,996M parameters, bfloat16, 4.0 GB on the disk; five query heads share a key head."""
    return _llama(
        hidden_size=2560,
        intermediate_size=6912,
        num_hidden_layers=27,
        num_attention_heads=20,
        num_key_value_heads=4,
        max_position_embeddings=4096,
    )


def _llama(**sizes: int) -> PreTrainedModel:
    config = LlamaConfig(vocab_size=32000, tie_word_embeddings=False, **sizes)
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
    makers = {"gpt2": gpt2, "llama": llama, "llama-135m": llama_135m, "llama-2b": llama_2b}
    save(makers[sys.argv[1]](), Path(sys.argv[2]))
