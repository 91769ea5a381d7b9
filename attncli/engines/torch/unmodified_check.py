"""The model as it runs without us: the same tokens once more, to hold what was recorded against.

What our attention function leaves out is left out of everything that is computed from its result. So the model runs
again with its own attention, up to the last layer that was recorded, and what its attention modules give is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_hook

from attncli.engines.torch.attention_backend import running_with
from attncli.engines.torch.recorder import Finished, Recorder, Sublayer
from attncli.engines.torch.to_cpu import fetched
from attncli.errors import NotExposedError
from attncli.files import to_numpy
from attncli.trace.layer import Proof

_MOST = 2**26  # scores of one layer that the model's eager attention may hold, over the batch and all heads


class Returns:
    """What the attention modules gave in one pass.

    Attributes:
        order: the modules that returned, by their `id`, each with its place.
        outputs: of the layers that are wanted, `[B, Q, E]`.
    """

    def __init__(self) -> None:
        self.order: list[tuple[int, Sublayer]] = []
        self.outputs: dict[Sublayer, torch.Tensor] = {}


@contextmanager
def returns_kept(run: Recorder) -> Iterator[Returns]:
    """Keep what the modules give that call our attention function, and end the pass after the last one wanted."""
    kept = Returns()
    with _returning(run, kept, lambda module: run.calling.pop(module, None)):
        yield kept


@contextmanager
def _returning(run: Recorder, kept: Returns, place_of: Callable[[int], Sublayer | None]) -> Iterator[None]:
    def keep(module: Any, _: Any, output: Any) -> None:
        place = place_of(id(module))
        if place is None:
            return
        kept.order.append((id(module), place))
        if place in run.wanted:
            kept.outputs[place] = output[0] if isinstance(output, list | tuple) else output
        if run.is_last(place):
            raise Finished

    hook = register_module_forward_hook(keep)
    try:
        yield
    finally:
        hook.remove()


def compare_unmodified(model: Any, run: Recorder, kept: Returns, forward: Callable[..., Any]) -> None:
    """Run a model with its own attention and put the worse of two comparisons into each recorded layer's proof.

    A proof so far says how far weights·V is from what our attention function gave. The other comparison is between what
    the layer gave and what it gives in the unmodified model. Where the scores of a layer are too many for eager
    attention and there is no fused one, the first stands alone.

    Args:
        model: what was recorded with our attention function.
        run: the recorded pass.
        kept: what its modules gave.
        forward: runs the model on the same batch, and then what it is given.
    """
    backend = _backend(model, run)
    if backend is None:
        return
    with running_with(model, backend):
        expected = _unmodified(run, kept, forward)
    for number in range(len(run.batch.spans)):
        for place, layer in run.layers[number].items():
            if layer.proof is None or place not in expected:
                continue
            rows, _ = run.cells(number, place)
            ours, theirs = (_own(one[place], number, len(run.batch.spans), rows) for one in (kept.outputs, expected))
            error = float(np.abs(ours - theirs).max()) if ours.shape == theirs.shape else np.inf
            other = Proof(error, "", "", float(np.abs(theirs).max()))
            worse = max(other, layer.proof, key=_badness)
            named = worse._replace(of="weights·V, layer output", against=f"the unmodified model's ({backend})")
            run.layers[number][place] = replace(layer, proof=named)


def _backend(model: Any, run: Recorder) -> str | None:
    """Return the model's own implementation to compare with: eager if its scores fit into memory, else fused."""
    rows, columns = run.batch.whole.of(run.kinds[-1])
    heads = max(layer.num_heads for layer in run.layers[0].values())
    if len(run.batch.spans) * heads * rows.stop * max(rows.stop, columns.stop) <= _MOST:
        return "eager"
    return "sdpa" if model._supports_sdpa else None


def _unmodified(run: Recorder, kept: Returns, forward: Callable[..., Any]) -> dict[Sublayer, torch.Tensor]:
    """Return what the recorded layers give in another pass, whose modules are to return in the same order."""
    callers = {module for module, _ in kept.order}
    order = iter(kept.order)

    def expected(module: int) -> Sublayer | None:
        if module not in callers:
            return None
        caller, place = next(order, (None, None))
        if caller != module:
            raise NotExposedError("without attn, the model runs its attention layers in another order")
        return place

    again = Returns()

    def fetch() -> None:
        both = iter(fetched([*kept.outputs.values(), *again.outputs.values()]))
        for one in (kept, again):
            one.outputs = {place: next(both) for place in one.outputs}

    with _returning(run, again, expected):
        forward(fetch)
    return again.outputs


def _own(output: torch.Tensor, number: int, batch: int, rows: slice) -> np.ndarray[Any, Any]:
    """Return one sentence's part of what a layer gives, `[B, T, …]`; all of it if it has another form."""
    if output.ndim > 2 and len(output) == batch and output.shape[1] >= rows.stop:
        output = output[number, rows]
    return to_numpy(output)


def _badness(proof: Proof) -> tuple[bool, float]:
    return bool(np.isnan(proof.max_abs_error)), proof.max_abs_error / (proof.magnitude or 1.0)
