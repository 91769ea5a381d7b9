"""Architectures that do what no other does: a module each, and here which model types they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attncli.engines.torch.architectures.architecture import Architecture
from attncli.engines.torch.architectures.deepseek_v4 import DeepseekV4
from attncli.engines.torch.architectures.diffllama import DiffLlama
from attncli.engines.torch.architectures.longformer import Led, Longformer
from attncli.engines.torch.op_log import Dense, Ended

_ARCHITECTURES = {
    "deepseek_v4": DeepseekV4(),
    "diffllama": DiffLlama(),
    "led": Led(),
    "longformer": Longformer(),
}
_PLAIN = Architecture()


def architecture_of(config: Any) -> Architecture:
    """Return what is particular about a model, by its configuration."""
    return _ARCHITECTURES.get(config.model_type, _PLAIN)


def layouts() -> Mapping[str, Callable[[Ended], Dense]]:
    """Return what makes one map of scores in an order of their own, by the classes of the modules that have them.

    A model of one architecture may have an encoder of another.
    """
    return {name: layout for each in _ARCHITECTURES.values() for name, layout in each.layouts.items()}
