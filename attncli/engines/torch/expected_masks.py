"""Expected masks of a checkpoint, by its configuration and code, to be compared with the masks it builds."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES

from attncli.engines.torch.attention_modules import Sublayer, find_attention_modules
from attncli.engines.torch.configuration import layer_types, sides
from attncli.masks.expressions import And, Atom, Expression

# Names for the number of keys that a layer selects among the visible ones: an index, a learned mask; or blocks.
_CHOOSING = ("index_topk", "indexer_budget", "keep_window_size", "index_topk_blocks")
_DECLARING = ("is_causal", "causal")
# Text towers that are causal, against what their modules declare.
_CAUSAL = {
    "git",
    *(f"{n}_text_model" for n in ("clip", "clipseg", "groupvit", "metaclip_2", "owlv2", "owlvit", "xclip")),
}
_WINDOWS = ("sliding_window", "sliding_window_size", "attention_window_size", "window_size")

_CAUSAL_HEADS = re.compile(r"CausalLM|LMHead")
_OTHER_HEADS = re.compile(r"MaskedLM|PreTraining|Classification|QuestionAnswering")


@dataclass(frozen=True)
class ExpectedMask:
    """The mask that a layer should have."""

    expression: Expression  # which query may attend to which key
    window: int | None = None  # width of a causal window, or of each side of another; None is no window
    # whether every visible key is used; not where a layer selects among them, or nothing is known
    is_exact: bool = True


def implied_masks(model: Any) -> dict[Sublayer, ExpectedMask]:
    """Return the mask that each layer of each kind should have, padding and documents left aside."""
    modules, both = find_attention_modules(model), sides(model.config)
    # An encoder-decoder with one configuration declares nothing about its masks.
    configs = {"self": both[0]} if len(both) == 1 else {"encoder": both[0], "decoder": both[1]}
    masks = {}
    for kind, layers in modules.layers.items():
        is_causal = kind == "decoder" if kind != "self" else _is_causal(model, modules.by_id)
        for layer in layers:
            if kind in configs:
                sub = configs[kind]  # or what a layer has of its own, where they differ
                sub = sub.per_layer_config[layer] if layer < sub.num_hidden_layers else sub
                masks[layer, kind] = _implied(sub, layer, is_causal)
            else:
                masks[layer, kind] = ExpectedMask(_plain(is_causal is True))
    return masks


def _is_causal(model: Any, attention: Collection[int]) -> bool | None:
    """Return whether a model without a decoder of its own is causal; None if that is not declared.

    Sources are the configuration (`is_causal`, `is_decoder`), its attention modules, and its training objective.
    """
    config = model.config
    if config.model_type in _CAUSAL:
        return True
    if config.model_type == "xlnet":  # in training alone
        return False
    if config.model_type == "blip_text_model":
        return type(model).__name__ == "BlipTextLMHeadModel"
    declared = (getattr(config, name, None) for name in _DECLARING)
    if (value := next((value for value in declared if isinstance(value, bool)), None)) is not None:
        return value
    if getattr(config, "is_decoder", False):
        return True
    values = {getattr(module, "is_causal", None) for module in model.modules() if id(module) in attention}
    if values & {True, False}:
        return True in values
    if config.model_type in CONFIG_MAPPING_NAMES:
        writes = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        return writes and config.model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    heads = " ".join([*(config.architectures or ()), *(getattr(config, "auto_map", None) or ())])
    return True if _CAUSAL_HEADS.search(heads) else False if _OTHER_HEADS.search(heads) else None


def _implied(config: Any, layer: int, is_causal: bool | None) -> ExpectedMask:
    if is_causal is None:
        return ExpectedMask(Atom("full"), is_exact=False)
    types = layer_types(config, "layer_types", "attention_layers", "layers_block_type")
    layer_type = types[layer] if layer < len(types) else ""  # some have one type for all layers
    is_exact = "indexed" not in layer_type and all(getattr(config, name, None) is None for name in _CHOOSING)
    if "reference" in layer_type:  # a window over the generated text, and all of the prompt
        return ExpectedMask(_plain(is_causal))
    if "chunk" in layer_type:
        chunk = Atom("chunk", (config.attention_chunk_size,))
        return ExpectedMask(And((Atom("causal"), chunk)) if is_causal else chunk, None, is_exact)
    window = _window(config, layer_type)
    if window is None:
        return ExpectedMask(_plain(is_causal), None, is_exact)
    if is_causal:
        return ExpectedMask(Atom("window", (window,)), window, is_exact)
    side = window - bool(getattr(config, "use_bidirectional_attention", False))  # Gemma 3 counts the query itself
    return ExpectedMask(Atom("band", (side, side)), side, is_exact)


def _plain(is_causal: bool) -> Atom:
    return Atom("causal" if is_causal else "full")


def _window(config: Any, layer_type: str) -> int | None:
    """Return the width of a layer's window, in transformers' convention: w keys, the query's own included."""
    if layer_type and not any(word in layer_type for word in ("sliding", "local")):
        if layer_type != "attention":  # RecurrentGemma: every attention layer has a window
            return None
    elif not layer_type and getattr(config, "use_sliding_window", True) is False:
        return None
    # An architecture of transformers without windows may have a leftover in its file.
    is_declared = bool(layer_type) or not type(config).__module__.startswith("transformers.")
    widths = (getattr(config, name, None) for name in _WINDOWS if is_declared or hasattr(type(config), name))
    return next((width for width in widths if isinstance(width, int) and width > 0), None)
