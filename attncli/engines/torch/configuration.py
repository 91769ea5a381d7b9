"""Configurations of models: their layers and heads, on the side that has most of an encoder-decoder."""

from __future__ import annotations

import re
from typing import Any

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
    """Return how many layers the model has."""
    return max(1, *_counts(config, _LAYERS))


def head_count(config: Any) -> int:
    """Return how many heads the layers have."""
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
