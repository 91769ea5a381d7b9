"""Architectures that do what no other does: a module each, and here which model types they are."""

from __future__ import annotations

from typing import Any

from attncli.engines.torch.architectures.architecture import Architecture
from attncli.engines.torch.architectures.big_bird import BigBird
from attncli.engines.torch.architectures.causality import CLIP_TOWERS, KnownCausality
from attncli.engines.torch.architectures.deepseek_v4 import DeepseekV4
from attncli.engines.torch.architectures.diffllama import DiffLlama
from attncli.engines.torch.architectures.longformer import Led, Longformer, read_bands
from attncli.engines.torch.architectures.seamless import Seamless

_ARCHITECTURES = {
    **dict.fromkeys(("big_bird", "bigbird_pegasus"), BigBird()),
    **dict.fromkeys((*CLIP_TOWERS, "git"), KnownCausality(always=True)),
    "blip_text_model": KnownCausality("BlipTextLMHeadModel"),
    "deepseek_v4": DeepseekV4(),
    "diffllama": DiffLlama(),
    "led": Led(),
    "longformer": Longformer(),
    "seamless_m4t": Seamless("SeamlessM4TForTextToText"),
    "seamless_m4t_v2": Seamless("SeamlessM4Tv2ForTextToText"),
    "xlnet": KnownCausality(),
}
_PLAIN = Architecture()

# What reads modules that compute their scores in an order of their own, whatever model they stand in; see `read_bands`.
MODULE_READERS = (read_bands,)


def architecture_of(config: Any) -> Architecture:
    """Return what is particular about a model, by its configuration."""
    return _ARCHITECTURES.get(config.model_type, _PLAIN)
