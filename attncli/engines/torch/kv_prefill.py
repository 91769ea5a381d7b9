"""Continuing from a KV cache: the first positions have run, and the rest is recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch

from attncli.engines.torch.attention_backend import running_with, translate_model_errors
from attncli.errors import NotExposedError


def continued(
    model: Any, inputs: Mapping[str, torch.Tensor], past: int
) -> tuple[Callable[..., Any], dict[str, torch.Tensor]]:
    """Run the first positions of sentences, of an encoder-decoder those of the decoder, and fill a KV cache.

    Args:
        model: what runs, with its own attention, unwatched.
        inputs: of the whole sentences.
        past: how many positions run now.

    Returns:
        What runs the model from there on, and the inputs that are left for it.

    Raises:
        NotExposedError: it has no KV cache.
    """
    is_encoder_decoder = model.config.is_encoder_decoder
    own = {name: value for name, value in inputs.items() if name.startswith("decoder_") or not is_encoder_decoder}
    # An encoder's text runs whole, and the cross-attention needs its mask.
    kept = {name: value for name, value in inputs.items() if name not in own or name == "attention_mask"}
    more: dict[str, Any] = {}
    name = model.config.model_type
    with (
        translate_model_errors("the sentences", f"{name} does not run with --past, a KV cache"),
        running_with(model, "eager"),
    ):
        if is_encoder_decoder:
            more["encoder_outputs"] = model.get_encoder()(**kept)
        first = {name: value[:, :past] for name, value in own.items()}
        output = model(**kept | first, **more, use_cache=True)
    cache = getattr(output, "past_key_values", None)
    if cache is None:
        raise NotExposedError(f"{name} fills no KV cache, so that --past does not apply to it")

    def rest(**left: Any) -> Any:
        # A copy: a model that turns out to be one that has to be watched runs twice.
        return model(**left, **more, past_key_values=deepcopy(cache), use_cache=True)

    # Masks are of all positions.
    left = {name: value if name.endswith("attention_mask") else value[:, past:] for name, value in own.items()}
    return rest, kept | left
