"""One forward pass of a checkpoint, watched in the first of two ways that sees every layer."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attncli.errors import AttnError, InputError, NotExposedError
from attncli.sources.hub import first_sentence, is_exhausted
from attncli.sources.pretrained import interface
from attncli.sources.pretrained.loading import make_eager
from attncli.sources.pretrained.places import attention_places
from attncli.sources.pretrained.recording import Finished, Recorder, Request, Span, recorder
from attncli.sources.pretrained.reference import compare_unmodified, returns_kept
from attncli.sources.pretrained.watch import watching

_log = logging.getLogger(__name__)


def run(
    model: Any,
    part: Any,
    inputs: Mapping[str, Any],
    request: Request,
    attention_layers: Sequence[int],
    kinds: Sequence[str],
    spans: Sequence[Span],
    whole: Span,
) -> Recorder:
    """Run a model on a batch and return what was recorded.

    The model first runs with our attention function. If it never calls it, it is one that has to be watched: it
    is switched to its own eager attention, and stays there.

    Args:
        model: from `load_model`.
        part: what runs: the model, its encoder, or what goes on where a cache ends.
        inputs: what the tokenizer made of the texts.
        request: what to record.
        attention_layers: of a model that is no encoder-decoder, the layers that have softmax attention.
        kinds: the kinds of attention that run.
        spans: where each sentence stands.
        whole: the padded batch.

    Raises:
        NotExposedError: an attention layer could be watched in neither way.
        InputError: the batch does not fit into memory.
    """
    architecture = model.config.model_type

    def begin(has_sdpa: bool) -> Recorder:
        return Recorder(request, attention_places(model, attention_layers), kinds, spans, whole, has_sdpa)

    _as_loaded(model)
    if model.config._attn_implementation in (interface.ATTENTION, interface.EAGER_MASKS):
        this = begin(model._supports_sdpa)
        token = recorder.set(this)
        try:
            with returns_kept(this):
                _forward(model, part, inputs)
            this.check(architecture)
        except interface.UnknownTensorError:
            raise
        except NotExposedError:
            if request.mask is not None and any(this.seen.values()):
                raise
        else:
            if request.mask is None and not request.is_blank:
                compare_unmodified(model, this, lambda: _forward(model, part, inputs))
            return this
        finally:
            recorder.reset(token)
        _log.info("the model does not call the attention function that it is given: its own eager one is watched")
        make_eager(model)
    if request.mask is not None:
        raise NotExposedError(f"{architecture} makes its own mask, which --mask cannot replace")
    while True:
        this = begin(has_sdpa=False)
        try:
            with watching(this, model):
                _forward(model, part, inputs)
            this.check(architecture)
            return this
        except NotExposedError:
            # BigBird exchanges its attention modules when it first sees a short text.
            if begin(has_sdpa=False).places == this.places:
                raise


def _as_loaded(model: Any) -> None:
    """Undo what an earlier sentence did: BigBird leaves its sparse attention for good at the first short one."""
    for module in (model, getattr(model, "encoder", model)):
        if hasattr(module, "set_attention_type"):
            module.set_attention_type(model.config.attention_type)
            return


def _forward(model: Any, part: Any, inputs: Mapping[str, Any]) -> None:
    """Run a model, or a part of it, up to the last layer that is needed."""
    architecture = model.config.model_type
    try:
        with torch.inference_mode():
            part(**{name: tensor.to(model.device) for name, tensor in inputs.items()})
    except Finished:
        pass
    except AttnError:
        raise
    except Exception as error:  # a model's own code may raise anything
        if is_exhausted(error):
            batch, count = inputs["input_ids"].shape
            raise InputError(f"{batch} × {count} tokens do not fit into memory; shorten the text") from None
        raise NotExposedError(
            f"{architecture}: the model did not run on the text alone ({first_sentence(error)})"
        ) from None
