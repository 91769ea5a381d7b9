"""Reads the attention of models that never call transformers' attention function: they write their softmax out.

Such a model runs eagerly, unchanged, and is watched as `attn run` watches any program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from attncli.recording.call import AttentionCall, MaskArgument
from attncli.recording.notes import Notes
from attncli.recording.watch import watching
from attncli.trace.layer import LayerTrace

# What a model adds to a forbidden score is −1e4 at the least, and no score comes near: below this it is masked.
_FORBIDDEN = -5e3


@contextmanager
def tracing(wants: Callable[[], bool], emit: Callable[[Any, AttentionCall], None], batch: int) -> Iterator[None]:
    """Emit every attention that a model writes out.

    Args:
        wants: says whether what the innermost attention module computes is to be emitted.
        emit: takes it; the module is None.
        batch: how many sentences run.
    """

    def take(call: AttentionCall) -> None:
        if call.api == "softmax" and call.scores is not None and call.weights is not None and wants():
            emit(None, _by_scores(call, batch))

    notes = Notes()
    with watching(take, notes=notes):
        yield
    if notes.fault is not None:
        raise notes.fault


def _by_scores(call: AttentionCall, batch: int) -> AttentionCall:
    """Return a call whose mask is what its scores say, and nothing else is read from them."""

    def split(tensor: torch.Tensor | None) -> Any:
        """Return `[B, heads, …]` of that or of `[B·heads, 1, …]`."""
        return None if tensor is None else tensor.reshape(batch, -1, *tensor.shape[-2:])

    scores = split(call.scores)
    own = AttentionCall(
        api="softmax",
        place=call.place,
        shape=tuple(scores.shape),
        dtype=str(scores.dtype).removeprefix("torch."),
        device=str(scores.device),
        q=split(call.q),
        k=split(call.k),
        v=split(call.v),
        masks=(MaskArgument("scores", scores <= _FORBIDDEN, "masked"),),  # NaN is no mask
        scores=scores,
        weights=split(call.weights),
        # A copy: Nystromformer adds to it in place.
        output=None if call.output is None else split(call.output.clone()),
        output_of="the model's own product",
    )
    if own.weights is None or own.v is None or own.output is None:
        return own
    # Whether the weights that the softmax gave are those that the values were multiplied with.
    values = own.v.repeat_interleave(own.shape[1] // own.v.shape[1], dim=1).float()
    exact: dict[str, Any] = {
        "rtol": 0,
        "atol": 1e-2 * max(float(values.abs().nan_to_num().max()), 1.0),
        "equal_nan": True,
    }
    if torch.allclose(own.weights.float() @ values, own.output.float(), **exact):
        return own
    return replace(own, unsupported="changes its weights after the softmax; that is not supported")


def fitted_scale(layer: LayerTrace) -> float | None:
    """Return what q·k is multiplied with to give the recorded scores, or None if more was done to them."""
    q, k, scores = layer.q, layer.k, layer.recorded_scores
    if q is None or k is None or scores is None:
        return None
    allowed = scores > -np.inf
    products = (q @ np.repeat(k, len(q) // len(k), axis=0).swapaxes(-1, -2))[allowed]
    expected = scores[allowed]
    scale = float(np.vdot(products, expected) / max(np.vdot(products, products), np.finfo(np.float32).tiny))
    common = (1.0, q.shape[-1] ** -0.5)
    scale = next((each for each in common if abs(scale / each - 1) < 1e-4), scale)
    return scale if np.allclose(expected, products * scale, rtol=1e-4, atol=1e-5) else None
