"""One forward pass of a checkpoint, recorded in the first of two ways that sees every layer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from attncli.engines.torch import attention_interface, softmax_tracer
from attncli.engines.torch.architectures import architecture_of
from attncli.engines.torch.attention_backend import attempting, make_eager, switch
from attncli.engines.torch.attention_modules import attention_places
from attncli.engines.torch.recorder import Batch, Finished, Recorder, Request
from attncli.engines.torch.unmodified_check import compare_unmodified, returns_kept
from attncli.errors import NotExposedError

_log = logging.getLogger(__name__)


def run(model: Any, part: Any, batch: Batch, request: Request, kinds: Sequence[str]) -> Recorder:
    """Run a model on a batch and return what was recorded.

    The model first runs with our attention function. If it never calls it, it is one that has to be watched: it
    is switched to its own eager attention, and stays there.

    Args:
        model: from `load_model`.
        part: what runs: the model, its encoder, or what goes on where a cache ends.
        batch: the sentences.
        request: what to record.
        kinds: the kinds of attention that run.

    Raises:
        NotExposedError: an attention layer could be watched in neither way.
        InputError: the batch does not fit into memory.
    """
    architecture = model.config.model_type
    forward = partial(_forward, model, part, batch.inputs)
    _as_loaded(model)
    uses_ours = model.config._attn_implementation == attention_interface.ATTENTION
    if uses_ours and architecture_of(model.config).adds_to_its_mask:
        switch(model, attention_interface.EAGER_MASKS)
    if model.config._attn_implementation in (attention_interface.ATTENTION, attention_interface.EAGER_MASKS):
        this = Recorder(request, attention_places(model), kinds, batch, model.config)
        try:
            with attention_interface.recording(this, model), returns_kept(this) as returns:
                forward(this.fetch)
            this.check(architecture)
        except attention_interface.UnknownTensorError:
            raise
        except NotExposedError:
            if request.mask is not None and any(this.seen.values()):
                raise
        else:
            if request.mask is None and not request.is_blank:
                compare_unmodified(model, this, returns, forward)
            return this
        _log.info("the model does not call the attention function that it is given: its own eager one is watched")
        make_eager(model)
    if request.mask is not None:
        raise NotExposedError(f"{architecture} makes its own mask, which --mask cannot replace")
    while True:
        this = Recorder(request, attention_places(model), kinds, batch, model.config)
        try:
            with softmax_tracer.recording(this, model):
                forward(this.fetch)
            this.check(architecture)
            return this
        except NotExposedError:
            # BigBird exchanges its attention modules when it first sees a short text.
            if attention_places(model) == this.places:
                raise


def _as_loaded(model: Any) -> None:
    """Undo what an earlier sentence did: BigBird leaves its sparse attention for good at the first short one."""
    for module in (model, getattr(model, "encoder", model)):
        if hasattr(module, "set_attention_type"):
            module.set_attention_type(model.config.attention_type)
            return


def _forward(model: Any, part: Any, inputs: Mapping[str, Any], finish: Callable[[], None]) -> None:
    """Run a model, or a part of it, up to the last layer that is needed; then fetch what the device still holds."""
    batch, count = inputs["input_ids"].shape
    failure = f"{model.config.model_type}: the model did not run on the text alone"
    with attempting(f"{batch} × {count} tokens", failure):
        given = architecture_of(model.config).inputs(model.config, inputs)
        with suppress(Finished):
            part(**{name: tensor.to(model.device) for name, tensor in given.items()})
        finish()
