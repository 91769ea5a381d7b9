"""Continuing from a KV cache: the first positions have run, and the rest is recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch

from attncli.engines.torch.attention_backend import running_with, translate_model_errors
from attncli.errors import NotExposedError


def cut_inputs(inputs: Mapping[str, Any], is_encoder_decoder: bool, start: int, end: int | None) -> dict[str, Any]:
    """Return the inputs of some positions; masks are of all before them too, and an encoder's inputs stay whole."""
    own = "decoder_" if is_encoder_decoder else ""
    return {
        name: value[:, None if name.endswith("attention_mask") else start : end] if name.startswith(own) else value
        for name, value in inputs.items()
    }


def encoder_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the encoder of an encoder-decoder reads."""
    return {name: value for name, value in inputs.items() if not name.startswith("decoder_")}


def continued(
    model: Any, inputs: Mapping[str, torch.Tensor], past: int
) -> tuple[Callable[..., Any], dict[str, torch.Tensor]]:
    """Run the first positions of sentences, of an encoder-decoder those of the decoder, and fill a KV cache.

    Args:
        model: what runs, with its own attention, unrecorded.
        inputs: of the whole sentences.
        past: how many positions run now.

    Returns:
        What runs the model from there on, and the inputs that are left for it.

    Raises:
        NotExposedError: it has no KV cache.
    """
    is_encoder_decoder = model.config.is_encoder_decoder
    more: dict[str, Any] = {}
    name = model.config.model_type
    failure = f"{name} does not run with --past, a KV cache"
    with translate_model_errors("the sentences", failure), running_with(model, "eager"):
        if is_encoder_decoder:
            more["encoder_outputs"] = model.get_encoder()(**encoder_inputs(inputs))
        output = model(**cut_inputs(inputs, is_encoder_decoder, 0, past), **more, use_cache=True)
    cache = getattr(output, "past_key_values", None)
    if cache is None:
        raise NotExposedError(f"{name} fills no KV cache, so that --past does not apply to it")

    def rest(**left: Any) -> Any:
        # A copy: a model whose softmax turns out to have to be traced runs twice.
        return model(**left, **more, past_key_values=deepcopy(cache), use_cache=True)

    return rest, cut_inputs(inputs, is_encoder_decoder, past, None)
