"""The model as it runs without us: the same tokens once more, to hold what was recorded against.

What our attention function leaves out is left out of everything that is computed from its result. So the model runs
again with its own attention, up to the last layer that was recorded, and what its attention modules give is compared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_hook

from attncli.errors import NotExposedError
from attncli.files import to_numpy
from attncli.sources.pretrained.recording import Finished, Recorder
from attncli.trace.layer import Proof

_log = logging.getLogger(__name__)

_MOST = 2**26  # scores of one layer that the model's eager attention may hold, over the batch and all heads


@contextmanager
def returns_kept(run: Recorder) -> Iterator[None]:
    """Keep what the attention modules give that call our attention function, and end the pass after the last one."""

    def keep(module: Any, _: Any, output: Any) -> None:
        place = run.calling.pop(id(module), None)
        if place is None:
            return
        run.returned.append((id(module), place))
        if place in run.wanted:
            run.outputs[place] = _first(output)
        if run.is_last(place):
            raise Finished

    with _hooked(keep):
        yield


def compare_unmodified(model: Any, run: Recorder, forward: Callable[[], Any]) -> None:
    """Run a model with its own attention and put the worse of two comparisons into each recorded layer's proof.

    A proof so far says how far weights·V is from what our attention function gave. The other comparison is between what
    the layer gave and what it gives in the unmodified model. Where the scores of a layer are too many for eager
    attention and there is no fused one, the first stands alone.

    Args:
        model: what was recorded with our attention function.
        run: the recorded pass.
        forward: runs the model on the same batch.
    """
    backend = _backend(model, run)
    if backend is None:
        return
    expected = _unmodified(model, run, forward, backend)
    for number, span in enumerate(run.spans):
        for place, layer in run.layers[number].items():
            if layer.proof is None or place not in expected:
                continue
            rows = span.of(place[1])[0]
            ours, theirs = (_own(one[place], number, len(run.spans), rows) for one in (run.outputs, expected))
            error = float(np.abs(ours - theirs).max()) if ours.shape == theirs.shape else np.inf
            other = Proof(error, "", "", float(np.abs(theirs).max()))
            worse = max(other, layer.proof, key=_badness)
            named = worse._replace(of="weights·V, layer output", against=f"the unmodified model's ({backend})")
            run.layers[number][place] = replace(layer, proof=named)


def _backend(model: Any, run: Recorder) -> str | None:
    """Return which of the model's own implementations fits into memory; the eager one is whose weights are shown."""
    rows, columns = run.whole.of(run.kinds[-1])
    heads = max(layer.num_heads for layer in run.layers[0].values())
    if len(run.spans) * heads * rows.stop * max(rows.stop, columns.stop) <= _MOST:
        return "eager"
    return "sdpa" if model._supports_sdpa else None


def _unmodified(
    model: Any, run: Recorder, forward: Callable[[], Any], backend: str
) -> dict[tuple[int, str], torch.Tensor]:
    """Return what the recorded layers give while the model runs with its own attention."""
    callers = {module for module, _ in run.returned}
    order = iter(run.returned)
    found: dict[tuple[int, str], torch.Tensor] = {}

    def keep(module: Any, _: Any, output: Any) -> None:
        if id(module) not in callers:
            return
        caller, place = next(order, (None, None))
        if caller != id(module) or place is None:
            raise NotExposedError("without attn, the model runs its attention layers in another order")
        if place in run.wanted:
            found[place] = _first(output)
        if place == run.returned[-1][1]:
            raise Finished

    recorded_with = model.config._attn_implementation
    model.set_attn_implementation(backend)
    try:
        with _hooked(keep):
            forward()
    finally:
        model.set_attn_implementation(recorded_with)
    return found


@contextmanager
def _hooked(hook: Callable[[Any, Any, Any], None]) -> Iterator[None]:
    handle = register_module_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _first(output: Any) -> torch.Tensor:
    return output[0] if isinstance(output, list | tuple) else output


def _own(output: torch.Tensor, number: int, batch: int, rows: slice) -> np.ndarray[Any, Any]:
    """Return one sentence's part of what a layer gives, `[B, T, …]`; all of it if it has another form."""
    if output.ndim > 2 and len(output) == batch and output.shape[1] >= rows.stop:
        output = output[number, rows]
    return to_numpy(output)


def _badness(proof: Proof) -> tuple[bool, float]:
    return bool(np.isnan(proof.max_abs_error)), proof.max_abs_error / (proof.magnitude or 1.0)
