"""Runs a checkpoint once under a recorder, in the first of two ways in which every layer's attention is read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from attncli.engines.torch.architectures import MODULE_READERS, architecture_of
from attncli.engines.torch.attention_backend import set_backend, translate_model_errors
from attncli.engines.torch.attention_modules import find_attention_modules
from attncli.engines.torch.recorder import PaddedBatch, Recorder, RecordRequest, StopForward, UnknownPositionsError
from attncli.engines.torch.softmax_tracer import tracing
from attncli.engines.torch.unmodified_check import verify_unmodified
from attncli.errors import NotExposedError
from attncli.recording.readers import transformers as interface

_log = logging.getLogger(__name__)


def run(model: Any, part: Any, batch: PaddedBatch, request: RecordRequest, kinds: Sequence[str]) -> Recorder:
    """Run a model on a batch and return what was recorded.

    The model first runs with our attention function. If it never calls it, it is one whose softmax has to be traced: it
    is switched to its own eager attention, and stays there.

    Args:
        model: from `load_model`.
        part: what runs: the model, or its encoder, or what stands around it and looks at pictures for it.
        batch: the sentences.
        request: what to record.
        kinds: the kinds of attention that run.

    Raises:
        NotExposedError: an attention layer could be read in neither way.
        InputError: the batch does not fit into memory.
    """
    architecture, own = model.config.model_type, set(model.modules())
    root, scope = (model, None) if part in own else (part, {id(module) for module in own})
    forward = partial(_forward, model, part, batch)
    architecture_of(model.config).prepare(model, batch.whole.text.stop)
    if model.config._attn_implementation in (interface.ATTENTION, interface.EAGER_MASKS):
        recorder = Recorder(request, find_attention_modules(model), kinds, batch, scope)
        reader = interface.InterfaceReader(
            recorder.wants, recorder.emit, model._supports_sdpa, request.mask, request.audits
        )
        try:
            with interface.reading(reader), recorder.following():
                forward()
            recorder.check(architecture)
        except (interface.UnknownTensorError, UnknownPositionsError):
            raise
        except NotExposedError:
            if request.mask is not None and any(recorder.order.values()):
                raise
        else:
            if request.mask is None:
                verify_unmodified(root, recorder, forward)
            return recorder
        _log.info("the model does not call transformers' attention function; tracing its softmax")
        set_backend(root, "eager")
    if request.mask is not None:
        raise NotExposedError(f"{architecture} makes its own mask, which --mask cannot replace")
    recorder = Recorder(request, find_attention_modules(model), kinds, batch, scope)
    with ExitStack() as readers:
        readers.enter_context(recorder.following())
        readers.enter_context(tracing(recorder.wants, recorder.emit, len(batch.spans)))
        for reading in MODULE_READERS:
            readers.enter_context(reading(model, recorder.wants, recorder.emit, batch.whole.text.stop))
        forward()
    recorder.check(architecture)
    return recorder


def _forward(model: Any, part: Any, batch: PaddedBatch) -> None:
    """Run a model, or a part of it, up to the last layer that is needed."""
    read = "the pictures" if part is not model and not model.config.is_encoder_decoder else "the text alone"
    texts = f"{len(batch.spans)} × {batch.whole.text.stop} tokens"
    failure = f"{model.config.model_type}: the model did not run on {read}"
    with translate_model_errors(texts, failure), suppress(StopForward):
        part(**{name: tensor.to(model.device) for name, tensor in batch.inputs.items()})
