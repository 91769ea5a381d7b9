"""Which module of a model is the attention of which layer, and models without the layers above those asked for."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attncli.sources.pretrained.configuration import attention_layers

_NAME = re.compile("Attention(?!Residual)")  # of a class; Inkling 2 mixes its layers by what it calls one, too
_KEPT = "attncli_kept_layers"  # an attribute of a model that was cut


@dataclass(frozen=True)
class Place:
    """Where an attention module stands.

    Attributes:
        kind: `self`, or `encoder`, `decoder`, `cross`.
        layers: name of the list of layers it is in.
        index: its number there; None outside of any list.
        is_outermost: whether it is inside no other one, as BERT's self-attention is in its attention.
    """

    kind: str
    layers: str
    index: int | None
    is_outermost: bool


@dataclass(frozen=True)
class Places:
    """The attention modules of a model.

    Attributes:
        modules: where each one stands, by its `id`.
        layers: the layers that have softmax attention, of each kind.
    """

    modules: Mapping[int, Place]
    layers: Mapping[str, Sequence[int]]

    @property
    def is_named(self) -> bool:
        """Whether a module's name tells its layer: not where layers share one, nor where one layer has two."""
        outer = [(place.kind, place.index) for place in self.modules.values() if place.is_outermost]
        known = {(kind, layer) for kind, layers in self.layers.items() for layer in layers}
        return len(set(outer)) == len(outer) and known <= set(outer)

    def has(self, module: Any) -> bool:
        """Whether a module is one of the attention layers, as far as names tell; no layer of another sort."""
        return not self.is_named or self.layer(module, 0) in self.layers[self.kind(module)]

    def kind(self, module: Any) -> str:
        """Return the kind of an attention module."""
        place = self.modules.get(id(module))
        return place.kind if place else next(iter(self.layers))

    def layer(self, module: Any, calls: int) -> int:
        """Return the layer of a module that calls after `calls` others of its kind; −1 if there are no more."""
        if self.is_named:
            place = self.modules.get(id(module))
            return -1 if place is None or place.index is None else place.index
        known = self.layers[self.kind(module)]
        return known[calls] if calls < len(known) else -1


def attention_places(model: Any) -> Places:
    """Find a model's attention modules, by the names of their classes."""
    named = {name: module for name, module in model.named_modules() if _NAME.search(type(module).__name__)}
    is_encoder_decoder = model.config.is_encoder_decoder
    modules = {}
    for name, module in named.items():
        is_outermost = not any(name.startswith(other + ".") for other in named)
        modules[id(module)] = _place(name, type(module).__name__, is_outermost, is_encoder_decoder)
    if not is_encoder_decoder:
        kept = getattr(model, _KEPT, math.inf)
        return Places(modules, {"self": [layer for layer in attention_layers(model.config) if layer < kept]})
    kinds = [place.kind for place in modules.values() if place.is_outermost]
    return Places(modules, {kind: range(kinds.count(kind)) for kind in ("encoder", "decoder", "cross")})


def _place(name: str, class_name: str, is_outermost: bool, is_encoder_decoder: bool) -> Place:
    # Its layer is the first number in a module's name: encoder.layer.3.attention.self
    number = re.search(r"\.(\d+)(?=\.|$)", name)
    layers, index = (name[: number.start()], int(number[1])) if number else ("", None)
    if not is_encoder_decoder:
        return Place("self", layers, index, is_outermost)
    side = next((part for part in name.split(".") if part in ("encoder", "decoder")), "decoder")
    own = (name.rpartition(side + ".")[2] + class_name).lower()
    is_cross = side == "decoder" and any(word in own for word in ("cross", "encoder_attn", "encdec", "enc_dec"))
    return Place("cross" if is_cross else side, layers, index, is_outermost)


def without_layers(model_class: type, keep: int, whole_encoder: bool) -> type:
    """Return a model class whose models have only the first `keep` layers, and the configuration of all of them.

    Loading such a model reads only the tensors it has. The configuration stays whole because some models compute
    with it: residuals are scaled by the number of layers (MiniCPM), the last layers share keys (Gemma 3n).
    A model whose layers share their modules stays whole, and so does an encoder whose output a decoder reads.
    """

    class Shortened(model_class):  # type: ignore[misc]
        def __init__(self, config: Any, *arguments: Any, **options: Any) -> None:
            super().__init__(config, *arguments, **options)
            places = attention_places(self)
            if places.is_named:
                cut = [place for place in places.modules.values() if not (whole_encoder and place.kind == "encoder")]
                for name in {place.layers for place in cut if place.index is not None}:
                    del self.get_submodule(name)[keep:]
                setattr(self, _KEPT, keep)

    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(Shortened, name, getattr(model_class, name))
    return Shortened
