"""Configurations of models: their layers and heads, and facts about a few architectures that they lack."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attncli.errors import LoadError, NotExposedError
from attncli.text import visible

# Names of layers with softmax attention in configurations: full_attention, sliding_attention, chunked_attention,
# attention, minimax_m3_sparse, and hybrid where it stands beside a recurrence; linear_attention, mamba, conv and
# others have none.
_ATTENTION_TYPE = re.compile(r"^(?!linear).*attention|sliding|^hybrid|_sparse$")

_LAYERS = ("num_hidden_layers", "decoder_layers", "num_decoder_layers")
_HEADS = ("num_attention_heads", "encoder_attention_heads", "decoder_attention_heads", "num_decoder_attention_heads")
_PICTURED = "cross_attention"


def sides(config: Any) -> list[Any]:
    """Return the configurations of both sides of an encoder-decoder that has two (T5Gemma), else the only one."""
    both = [getattr(config, side, None) for side in ("encoder", "decoder")] if config.is_encoder_decoder else []
    return both if both and all(map(_has_counts, both)) else [config]


def is_counted(config: Any) -> bool:
    """Return whether a configuration has the numbers of layers and heads."""
    return all(map(_has_counts, sides(config)))


def _has_counts(config: Any) -> bool:
    return all(isinstance(getattr(config, names[0], None), int) for names in (_LAYERS, _HEADS))


def layer_count(config: Any) -> int:
    """Return how many layers the model has, on the deeper side of an encoder-decoder."""
    return max(1, *_counts(config, _LAYERS))


def head_count(config: Any) -> int:
    """Return how many heads the layers have, on the wider side of an encoder-decoder."""
    return max(_counts(config, _HEADS))


def _counts(config: Any, names: tuple[str, ...]) -> list[int]:
    counts = (getattr(side, name, None) for side in sides(config) for name in names)
    return [count for count in counts if isinstance(count, int)]


def layer_types(config: Any, *names: str) -> list[str]:
    """Return the type of each layer in a configuration, under the first of these names that it has."""
    lists = (getattr(config, name, None) for name in names)
    return [str(kind) for kind in next((types for types in lists if isinstance(types, list | tuple)), ())]


def other_layers(config: Any) -> dict[int, str]:
    """Return the layers of a hybrid without softmax attention, with what they have instead."""
    types = layer_types(config, "layer_types", "layers_block_type")
    replaced = {index: kind for index, kind in enumerate(types) if not _ATTENTION_TYPE.search(kind)}
    pictured = getattr(config, "cross_attention_layers", None)  # Llama 3.2 Vision
    replaced |= dict.fromkeys(pictured if isinstance(pictured, list | tuple) else (), _PICTURED)
    return dict(sorted(replaced.items()))


def instead(kind: str) -> str:
    """Return the mechanism of a layer in place of softmax attention among its tokens, by its type in `other_layers`."""
    if kind == _PICTURED:
        return "cross-attention to a picture, which does not run on a text alone"
    return f"{visible(kind)}, no softmax attention"


def attention_layers(config: Any) -> list[int]:
    """Return the layers that have softmax attention; see `other_layers`."""
    replaced = other_layers(config)
    return [layer for layer in range(layer_count(config)) if layer not in replaced]


def start_id(name: str, config: Any, tokenizer: Any) -> int | None:
    """Return the id that a decoder begins with, or None where the configuration has none.

    Raises:
        LoadError: it is no id of the tokenizer.
    """
    start = getattr(config, "decoder_start_token_id", None)
    if start is None or (type(start) is int and start in tokenizer.get_vocab().values()):
        return start
    raise LoadError(
        f"the configuration of {visible(name)} starts its decoder with {visible(repr(start)[:50])}; expected "
        "decoder_start_token_id to be the id of a token"
    )


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
