"""Runs a model with its fused kernel or its own eager attention, and translates the errors of its code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from attncli.checkpoints.hub import first_sentence, is_exhausted
from attncli.errors import AttnError, InputError, NotExposedError


def set_backend(model: Any, attention: str) -> None:
    """Let a model run with this attention from now on, or with its own eager one if it cannot be given another."""
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation"):
            config._attn_implementation = attention if model._can_set_attn_implementation() else "eager"


@contextmanager
def translate_model_errors(texts: str, failure: str, kind: type[NotExposedError] = NotExposedError) -> Iterator[None]:
    """Turn errors of a model's own code into one sentence, without gradients.

    Raises:
        InputError: the texts do not fit into memory.
        NotExposedError: anything else, of the given kind: the failure, and the error's message.
    """
    try:
        with torch.inference_mode():
            yield
    except AttnError:
        raise
    except Exception as error:  # a model's own code may raise anything
        if is_exhausted(error):
            raise InputError(f"{texts} do not fit into memory; shorten the text") from None
        raise kind(f"{failure} ({first_sentence(error)})") from None
