"""Attention modules of a model, with their layers, and models without the layers that are not needed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, update_wrapper
from typing import Any

from transformers import PreTrainedModel

from attncli.engines.torch.configuration import attention_layers

Sublayer = tuple[int, str]  # a layer's index and its kind of attention

_SIDE = re.compile(r"(encoder|decoder)$")  # SeamlessM4T has a text_encoder and a text_decoder
_NAME = re.compile("Attention(?!Residual)")  # of a class; Inkling 2 has an "AttentionResidual" between its layers
_CROSS = re.compile("cross|encoder_attn|encdec|enc_dec")  # in lower-case names
_CUT_AT = "attncli_layers"  # an attribute of a model that was cut


@dataclass(frozen=True)
class AttentionModule:
    """Position of an attention module in the model."""

    kind: str  # `self`, or `encoder`, `decoder`, `cross`
    layers: str  # name of the list of layers it is in
    index: int | None  # its number there; None outside of any list
    is_outermost: bool  # whether it is inside no other one, as BERT's self-attention is in its attention


@dataclass(frozen=True)
class AttentionModules:
    """The attention modules of a model."""

    by_id: Mapping[int, AttentionModule]  # by the `id` of the module
    layers: Mapping[str, Sequence[int]]  # the layers with softmax attention, of each kind

    @cached_property
    def is_named(self) -> bool:
        """Whether a module's name shows its layer: not where layers share one, nor where one layer has two."""
        outer = [(module.kind, module.index) for module in self.by_id.values() if module.is_outermost]
        expected = {(kind, layer) for kind, layers in self.layers.items() for layer in layers}
        return len(set(outer)) == len(outer) and expected <= set(outer)

    def sublayer(self, module: Any, counts: Mapping[str, int]) -> Sublayer | None:
        """Return the sublayer of a module that runs after `counts` others of each kind; None of no attention layer."""
        entry = self.by_id.get(id(module))
        kind = entry.kind if entry else next(iter(self.layers))
        layers = self.layers[kind]
        if not self.is_named:
            count = counts.get(kind, 0)
            return (layers[count] if count < len(layers) else -1), kind
        return (entry.index, kind) if entry and entry.index is not None and entry.index in layers else None


def find_attention_modules(model: Any) -> AttentionModules:
    """Find a model's attention modules, by the names of their classes."""
    named = {name: module for name, module in model.named_modules() if _NAME.search(type(module).__name__)}
    is_encoder_decoder = model.config.is_encoder_decoder
    by_id = {}
    for name, module in named.items():
        is_outermost = not any(name.startswith(other + ".") for other in named)
        # Its layer is the first number in its name: encoder.layer.3.attention.self
        number = re.search(r"\.(\d+)(?=\.|$)", name)
        layers, index = (name[: number.start()], int(number[1])) if number else ("", None)
        kind = "self"
        if is_encoder_decoder:
            kind = next((match[0] for part in name.split(".") if (match := _SIDE.search(part))), "decoder")
            label = (name.rpartition(kind + ".")[2] + type(module).__name__).lower()
            if kind == "decoder" and _CROSS.search(label):
                kind = "cross"
        by_id[id(module)] = AttentionModule(kind, layers, index, is_outermost)
    if not is_encoder_decoder:
        end = getattr(model, _CUT_AT, math.inf)
        return AttentionModules(by_id, {"self": [layer for layer in attention_layers(model.config) if layer < end]})
    kinds = [module.kind for module in by_id.values() if module.is_outermost]
    return AttentionModules(by_id, {kind: range(kinds.count(kind)) for kind in ("encoder", "decoder", "cross")})


def truncated_class(
    model_class: type, path: str, keep: int, whole_encoder: bool, with_head: bool, is_whole: bool
) -> type:
    """Return a model class whose models have the part at a path alone, with its first `keep` layers.

    All layers of an encoder stay for `whole_encoder`, whose output a decoder reads; the head for logits `with_head`;
    and everything around the part if it `is_whole`. The configuration stays, as some models compute with it: residuals
    are scaled by the number of layers (MiniCPM). A model whose layers share their modules stays whole.
    """

    class Truncated(model_class):  # type: ignore[misc]
        def __init__(self, config: Any, *arguments: Any, **options: Any) -> None:
            super().__init__(config, *arguments, **options)
            if path and not is_whole:
                _prune_to(self, path, with_head)
            part = self.get_submodule(path)
            modules = find_attention_modules(part)
            if modules.is_named:
                for entry in modules.by_id.values():
                    if entry.index is not None and not (whole_encoder and entry.kind == "encoder"):
                        del part.get_submodule(entry.layers)[keep:]
                setattr(part, _CUT_AT, keep)

    update_wrapper(Truncated, model_class, updated=())
    if path:
        # Not the class's, which may read more than the part: Qwen2.5-Omni's voices, from a pickle.
        Truncated.from_pretrained = classmethod(PreTrainedModel.from_pretrained.__func__)
    return Truncated


def _prune_to(model: Any, path: str, with_head: bool) -> None:
    head = model.get_output_embeddings() if with_head else None
    pairs = model.all_tied_weights_keys.items()
    # A checkpoint may have the embeddings under the name of the head that shares them, or of what both share.
    shared = [pair for pair in pairs if any(name.startswith(path + ".") for name in pair)]
    tied = {name.rpartition(".")[0] for pair in shared for name in pair}
    needed = [path, *tied, *(name for name, module in model.named_modules() if module is head)]

    def is_needed(name: str) -> bool:
        return not name or any(
            f"{name}.".startswith(f"{root}.") or f"{root}.".startswith(f"{name}.") for root in needed
        )

    for name, module in list(model.named_modules()):
        for child in [child for child, _ in module.named_children() if not is_needed(f"{name}.{child}".lstrip("."))]:
            if is_needed(name):
                delattr(module, child)
                module._is_hf_initialized = True  # how its class begins such a module asks for what it has lost
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    model.all_tied_weights_keys = {target: source for target, source in pairs if {target, source} <= names}
