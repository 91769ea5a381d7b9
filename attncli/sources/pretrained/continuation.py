"""A model that goes on where a KV cache ends: the first positions have run, the rest is asked about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch

from attncli.errors import NotExposedError
from attncli.sources.hub import first_sentence
from attncli.sources.pretrained.loading import make_eager


@dataclass(frozen=True)
class ContinuedModel:
    """What runs the rest of sentences whose beginning a model has read.

    Attributes:
        model: what runs.
        cache: the keys and values of the beginning.
        more: an encoder's output.
    """

    model: Any
    cache: Any
    more: Mapping[str, Any]

    def __call__(self, **inputs: Any) -> Any:
        """Run the rest of the sentences."""
        # A copy: a model that turns out to be one that has to be watched runs twice.
        return self.model(**inputs, **self.more, past_key_values=deepcopy(self.cache), use_cache=True)


def continued(
    model: Any, inputs: Mapping[str, torch.Tensor], past: int
) -> tuple[ContinuedModel, dict[str, torch.Tensor]]:
    """Run the first positions, of an encoder-decoder those of the decoder.

    Args:
        model: what runs, with its own attention, unwatched.
        inputs: of the whole sentences.
        past: how many positions run now.

    Returns:
        The model that goes on from there, and the inputs that are left for it.

    Raises:
        NotExposedError: it has no KV cache.
    """
    is_encoder_decoder = model.config.is_encoder_decoder
    own = {name: value for name, value in inputs.items() if name.startswith("decoder_") or not is_encoder_decoder}
    # An encoder's text runs whole, and the cross-attention needs its mask.
    kept = {name: value for name, value in inputs.items() if name not in own or name == "attention_mask"}
    more: dict[str, Any] = {}
    name = model.config.model_type
    try:
        with eagerly(model), torch.inference_mode():
            if is_encoder_decoder:
                more["encoder_outputs"] = model.get_encoder()(**kept)
            first = {name: value[:, :past] for name, value in own.items()}
            output = model(**kept | first, **more, use_cache=True)
    except Exception as error:  # a model's own code may raise anything
        raise NotExposedError(f"{name} does not run with --past, a KV cache ({first_sentence(error)})") from None
    cache = getattr(output, "past_key_values", None)
    if cache is None:
        raise NotExposedError(f"{name} fills no KV cache, so that --past does not apply to it")
    # Masks are of all positions.
    left = {name: value if name.endswith("attention_mask") else value[:, past:] for name, value in own.items()}
    return ContinuedModel(model, cache, more), kept | left


@contextmanager
def eagerly(model: Any) -> Iterator[None]:
    """Let a model run with its own attention, unwatched."""
    configs = [module.config for module in model.modules() if hasattr(module, "config")]
    before = [config._attn_implementation for config in configs]
    make_eager(model)
    try:
        yield
    finally:
        for config, attention in zip(configs, before, strict=True):
            config._attn_implementation = attention
