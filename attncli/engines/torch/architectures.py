"""Facts about a few architectures that are in neither their configurations nor their modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attncli.errors import NotExposedError


@dataclass(frozen=True)
class Architecture:
    """Special properties of an architecture; the defaults are those of all others."""

    note: str = ""  # computation of the model besides the weights that are shown
    # the class of the part that reads text, where the class for its configuration is of a larger system
    text_class: str | None = None
    # makes a model ready for a text of this many tokens; raises NotExposedError if it cannot be
    prepare: Callable[[Any, int], None] = lambda model, tokens: None
    # whether a model is causal, where neither configuration nor modules show it; else None
    is_causal: Callable[[Any], bool | None] = lambda model: None


def _attend_to_all(model: Any, tokens: int) -> None:
    """Give a BigBird full attention, for good, where it would switch to it; refuse texts that it reads in blocks."""
    config = model.config
    most = (5 + 2 * config.num_random_blocks) * config.block_size
    if config.attention_type == "block_sparse" and tokens > most:
        raise NotExposedError(
            f"{config.model_type} attends to blocks, by several softmax, where a text has more than {most} tokens"
        )
    (model if hasattr(model, "set_attention_type") else model.encoder).set_attention_type("original_full")


# Text towers that are causal, against what their modules declare.
_CAUSAL = ("clip", "clipseg", "groupvit", "metaclip_2", "owlv2", "owlvit", "xclip")
_ARCHITECTURES = {
    **dict.fromkeys(("big_bird", "bigbird_pegasus"), Architecture(prepare=_attend_to_all)),
    **dict.fromkeys(("git", *(f"{name}_text_model" for name in _CAUSAL)), Architecture(is_causal=lambda model: True)),
    "blip_text_model": Architecture(is_causal=lambda model: type(model).__name__ == "BlipTextLMHeadModel"),
    "diffllama": Architecture(
        note="diffllama subtracts the outputs of the second half of the heads, times a number of the layer, from those "
        "of the first half; the weights are those before"
    ),
    "seamless_m4t": Architecture(text_class="SeamlessM4TForTextToText"),
    "seamless_m4t_v2": Architecture(text_class="SeamlessM4Tv2ForTextToText"),
    "xlnet": Architecture(is_causal=lambda model: False),  # it is causal in training alone
}
_PLAIN = Architecture()


def architecture_of(config: Any) -> Architecture:
    """Return the facts about a model, by its configuration."""
    return _ARCHITECTURES.get(config.model_type, _PLAIN)
