"""One forward pass of a checkpoint, watched in the first of two ways that sees every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attncli.errors import AttnError, InputError, NotExposedError
from attncli.sources.pretrained import interface
from attncli.sources.pretrained.loading import first_sentence
from attncli.sources.pretrained.places import Places
from attncli.sources.pretrained.recording import Finished, Recorder, Request, Span, recorder
from attncli.sources.pretrained.watch import watching
from attncli.trace import LayerTrace


def run(
    model: Any, inputs: Mapping[str, Any], request: Request, places: Places, kinds: Sequence[str], spans: Sequence[Span]
) -> list[tuple[LayerTrace, ...]]:
    """Run a model on a batch and return the recorded layers of each sentence.

    The model first runs with our attention function. If it never calls it, it is one that has to be watched: it
    is switched to its own eager attention, and stays there.

    Args:
        model: a model from `load_model`, or its encoder.
        inputs: what the tokenizer made of the texts.
        request: what to record.
        places: the model's attention modules.
        kinds: the kinds of attention that run.
        spans: where each sentence stands.

    Raises:
        NotExposedError: an attention layer could be watched in neither way.
        InputError: the batch does not fit into memory.
    """
    if model.config._attn_implementation == interface.ATTENTION:
        this = Recorder(request, places, kinds, spans, model._supports_sdpa)
        token = recorder.set(this)
        try:
            _forward(model, inputs)
        finally:
            recorder.reset(token)
        if any(this.seen.values()):
            this.check(model.config.model_type)
            return this.traces()
        model.set_attn_implementation("eager")
    if request.mask is not None:
        raise NotExposedError(f"{model.config.model_type} makes its own mask, which --mask cannot replace")
    this = Recorder(request, places, kinds, spans, False)
    with watching(this, model, places):
        _forward(model, inputs)
    this.check(model.config.model_type)
    return this.traces()


def _forward(model: Any, inputs: Mapping[str, Any]) -> None:
    try:
        with torch.inference_mode():
            model(**{name: tensor.to(model.device) for name, tensor in inputs.items()})
    except Finished:
        return
    except AttnError:
        raise
    except (torch.OutOfMemoryError, MemoryError):
        batch, count = inputs["input_ids"].shape
        raise InputError(f"{batch} × {count} tokens do not fit into memory; shorten the sentence") from None
    except Exception as error:  # a model's own code may raise anything
        raise NotExposedError(
            f"{model.config.model_type}: the model did not run on the text alone ({first_sentence(error)})"
        ) from None
