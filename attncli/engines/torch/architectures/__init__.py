"""Architectures that do what no other does: a module each, and here which model types they are."""

from __future__ import annotations

from typing import Any

from attncli.engines.torch.architectures.architecture import Architecture
from attncli.engines.torch.architectures.deepseek_v4 import DeepseekV4
from attncli.engines.torch.architectures.diffllama import DiffLlama
from attncli.engines.torch.architectures.longformer import Led, Longformer, read_bands

_ARCHITECTURES = {
    "deepseek_v4": DeepseekV4(),
    "diffllama": DiffLlama(),
    "led": Led(),
    "longformer": Longformer(),
}
_PLAIN = Architecture()

# What reads modules that compute their scores in an order of their own, whatever model they stand in: context managers
# that take the model and a recorder.
MODULE_READERS = (read_bands,)


def architecture_of(config: Any) -> Architecture:
    """Return what is particular about a model, by its configuration."""
    return _ARCHITECTURES.get(config.model_type, _PLAIN)
