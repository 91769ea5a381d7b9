"""Small adapters, made and saved by peft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model
from small_checkpoints import save_tiny_llama
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification, BertConfig, GPT2Config

WHOLE = {
    "llama": AutoModelForCausalLM, "gpt2": AutoModelForCausalLM, "bert": AutoModelForSequenceClassification,
    "bare bert": AutoModel,
}  # fmt: skip


def save_base(family: str, folder: Path) -> str:
    save_tiny_llama(str(folder))
    if family == "llama":
        return str(folder)
    for name in ("config.json", "model.safetensors", "generation_config.json"):
        (folder / name).unlink()
    sizes: dict[str, Any] = {"vocab_size": 11, "initializer_range": 0.3}
    torch.manual_seed(0)
    if family == "gpt2":
        config: Any = GPT2Config(n_embd=24, n_layer=2, n_head=4, n_positions=32, **sizes)
    else:
        shape = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
        config = BertConfig(max_position_embeddings=32, **shape, **sizes)
    WHOLE[family].from_config(config).save_pretrained(folder)
    return str(folder)


def save_adapter(family: str, base: str, config: Any, folder: Path, std: float = 0.1) -> str:
    torch.manual_seed(1)
    model = get_peft_model(WHOLE[family].from_pretrained(base), config)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and "magnitude" not in name and "ia3" not in name:
            torch.nn.init.normal_(parameter, std=std)
        elif parameter.requires_grad:
            torch.nn.init.uniform_(parameter, 0.5, 2)
    model.save_pretrained(str(folder))
    return str(folder)
