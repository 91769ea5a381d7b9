"""What a few architectures do that no other does: here, or in a module of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attncli.engines.torch.architectures.longformer import read_bands
from attncli.errors import NotExposedError


@dataclass(frozen=True)
class Architecture:
    """What an architecture may do that others do not; the defaults are what all others do."""

    note: str = ""  # what a model computes beside the weights that are shown
    # the class of the part that reads text, where the class for its configuration is of a larger system
    text_class: str | None = None
    # makes a model ready for a text of so many tokens; raises NotExposedError if it cannot be
    prepare: Callable[[Any, int], None] = lambda model, tokens: None
    # whether a model looks at the past alone, where neither configuration nor modules tell; else None
    is_causal: Callable[[Any], bool | None] = lambda model: None
    band: str = ""  # the field that says how many keys the layers of an encoder compute, where they work in a band

    def reach(self, config: Any, layer: int) -> int | None:
        """Return how many keys to each side a layer computes, which works in a band; None for all others."""
        if not self.band:
            return None
        windows = getattr(config, self.band)
        return int(windows if isinstance(windows, int) else windows[layer]) // 2


def _attend_to_all(model: Any, tokens: int) -> None:
    """Give a BigBird full attention where it would take it by itself, for good; refuse what it reads in blocks."""
    config = model.config
    most = (5 + 2 * config.num_random_blocks) * config.block_size
    if config.attention_type == "block_sparse" and tokens > most:
        raise NotExposedError(
            f"{config.model_type} attends to blocks, by several softmax, where a text has more than {most} tokens"
        )
    (model if hasattr(model, "set_attention_type") else model.encoder).set_attention_type("original_full")


_BANDED = Architecture(
    note="no token sees the whole text: global tokens are there only where a caller chooses them",
    band="attention_window",
)
# Text towers that are causal though their modules say otherwise.
_CAUSAL = ("clip", "clipseg", "groupvit", "metaclip_2", "owlv2", "owlvit", "xclip")
_ARCHITECTURES = {
    **dict.fromkeys(("big_bird", "bigbird_pegasus"), Architecture(prepare=_attend_to_all)),
    **dict.fromkeys(("git", *(f"{name}_text_model" for name in _CAUSAL)), Architecture(is_causal=lambda model: True)),
    "blip_text_model": Architecture(is_causal=lambda model: type(model).__name__ == "BlipTextLMHeadModel"),
    "diffllama": Architecture(
        note="diffllama subtracts the outputs of the second half of the heads, times a number of the layer, from those "
        "of the first half; the weights are those before"
    ),
    **dict.fromkeys(("led", "longformer"), _BANDED),
    "seamless_m4t": Architecture(text_class="SeamlessM4TForTextToText"),
    "seamless_m4t_v2": Architecture(text_class="SeamlessM4Tv2ForTextToText"),
    "xlnet": Architecture(is_causal=lambda model: False),  # which looks back alone in training
}
_PLAIN = Architecture()

# What reads modules that compute their scores in an order of their own, whatever model they stand in.
MODULE_READERS = (read_bands,)


def architecture_of(config: Any) -> Architecture:
    """Return what is particular about a model, by its configuration."""
    return _ARCHITECTURES.get(config.model_type, _PLAIN)
