"""Runs the model once more without us, on the same tokens, to hold what was recorded against.

What our attention function leaves out is left out of everything that is computed from its result. So the model runs
again with its own attention, up to the last layer that was recorded, and what its attention modules give is compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_hook

from attncli.engines.torch.attention_backend import running_with
from attncli.engines.torch.recorder import Recorder, StopForward, Sublayer
from attncli.errors import NotExposedError
from attncli.files import to_numpy
from attncli.trace.layer import Proof

_MOST = 2**26  # scores of one layer that the model's eager attention may hold, over the batch and all heads

Outputs = dict[Sublayer, torch.Tensor]  # what attention modules gave, `[B, Q, E]`


def verify_unmodified(model: Any, recorder: Recorder, forward: Callable[[], None]) -> None:
    """Run a model with its own attention and put the worse of two comparisons into each recorded layer's proof.

    A proof so far says how far weights·V is from what our attention function gave. The other comparison is between what
    the layer gave and what it gives in the unmodified model. Where the scores of a layer are too many for eager
    attention and there is no fused one, the first stands alone.

    Args:
        model: what was recorded with our attention function.
        recorder: the recorded pass.
        forward: runs the model on the same batch.
    """
    rows, columns = recorder.batch.whole.of(recorder.kinds[-1])
    heads = max(layer.num_heads for layer in recorder.layers[0].values())
    backend = (
        "eager" if len(recorder.batch.spans) * heads * rows.stop * max(rows.stop, columns.stop) <= _MOST else "sdpa"
    )
    if backend == "sdpa" and not model._supports_sdpa:
        return
    with running_with(model, backend):
        theirs = _unmodified_outputs(recorder, forward)
    count = len(recorder.batch.spans)
    for number, layers in enumerate(recorder.layers):
        for sublayer, layer in layers.items():
            if layer.proof is None or sublayer not in theirs:
                continue
            rows, _ = recorder.batch.spans[number].of(sublayer[1])
            one, other = (
                _of_sentence(outputs[sublayer], number, count, rows) for outputs in (recorder.outputs, theirs)
            )
            error = float(np.abs(one - other).max()) if one.shape == other.shape else np.inf
            proofs = Proof(error, "", "", float(np.abs(other).max())), layer.proof
            worse = max(
                proofs, key=lambda one: (np.isnan(one.max_abs_error), one.max_abs_error / (one.magnitude or 1.0))
            )
            named = worse._replace(of="weights·V, layer output", against=f"the unmodified model's ({backend})")
            layers[sublayer] = replace(layer, proof=named)


def _unmodified_outputs(recorder: Recorder, forward: Callable[[], None]) -> Outputs:
    """Return what the recorded layers give in another pass, whose modules are to return in the same order."""
    callers = {module for module, _ in recorder.returned}
    order = iter(recorder.returned)
    again: Outputs = {}

    def leave(module: Any, _: Any, output: Any) -> None:
        if id(module) not in callers:
            return
        caller, sublayer = next(order, (None, None))
        if caller != id(module) or sublayer is None:
            raise NotExposedError("the unmodified model runs its attention layers in another order")
        if sublayer in recorder.outputs:
            again[sublayer] = output[0] if isinstance(output, list | tuple) else output
        if recorder.is_last(sublayer):
            raise StopForward

    hook = register_module_forward_hook(leave)
    try:
        forward()
    finally:
        hook.remove()
    return again


def _of_sentence(output: torch.Tensor, number: int, batch: int, rows: slice) -> np.ndarray[Any, Any]:
    """Return one sentence's part of what a layer gives, `[B, T, …]`; all of it if it has another form."""
    if output.ndim > 2 and len(output) == batch and output.shape[1] >= rows.stop:
        output = output[number, rows]
    return to_numpy(output)
