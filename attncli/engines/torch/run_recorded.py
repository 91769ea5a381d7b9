"""Runs a checkpoint once under a recorder, in the first of two ways in which every layer's attention is read."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
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
        part: what runs: the model, or its encoder.
        batch: the sentences.
        request: what to record.
        kinds: the kinds of attention that run.

    Raises:
        NotExposedError: an attention layer could be read in neither way.
        InputError: the batch does not fit into memory.
    """
    architecture = model.config.model_type
    forward = partial(_forward, model, part, batch.inputs)
    architecture_of(model.config).prepare(model, batch.inputs["input_ids"].shape[1])
    if model.config._attn_implementation in (interface.ATTENTION, interface.EAGER_MASKS):
        recorder = Recorder(request, find_attention_modules(model), kinds, batch)
        reader = interface.InterfaceReader(
            recorder.wants, recorder.emit, model._supports_sdpa, request.mask, request.is_blank, request.audits
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
            if request.mask is None and not request.is_blank:
                verify_unmodified(model, recorder, forward)
            return recorder
        _log.info("the model does not call transformers' attention function; tracing its softmax")
        set_backend(model, "eager")
    if request.mask is not None:
        raise NotExposedError(f"{architecture} makes its own mask, which --mask cannot replace")
    recorder = Recorder(request, find_attention_modules(model), kinds, batch)
    with ExitStack() as readers:
        readers.enter_context(recorder.following())
        readers.enter_context(tracing(recorder.wants, recorder.emit, len(batch.inputs["input_ids"])))
        for reading in MODULE_READERS:
            readers.enter_context(reading(model, recorder.wants, recorder.emit, batch.whole.text.stop))
        forward()
    recorder.check(architecture)
    return recorder


def _forward(model: Any, part: Any, inputs: Mapping[str, Any]) -> None:
    """Run a model, or a part of it, up to the last layer that is needed."""
    batch, count = inputs["input_ids"].shape
    failure = f"{model.config.model_type}: the model did not run on the text alone"
    with translate_model_errors(f"{batch} × {count} tokens", failure), suppress(StopForward):
        part(**{name: tensor.to(model.device) for name, tensor in inputs.items()})
