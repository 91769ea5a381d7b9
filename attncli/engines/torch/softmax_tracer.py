"""The second way in: the softmax of models that never call the attention function.

Such a model runs eagerly, unchanged, while every function it calls inside an attention module is watched: the
product of queries and keys, whatever is done to it, the softmax that takes it and gives the weights, and the
product of the weights with the values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from attncli.engines.torch.architectures import layouts
from attncli.engines.torch.op_log import FORBIDDEN, Dense, Ended, Product, Softmax, Watched
from attncli.engines.torch.recorder import Finished, Recorder, Sublayer
from attncli.errors import NotExposedError
from attncli.files import to_numpy
from attncli.masks.expressions import smallest
from attncli.trace.layer import LayerTrace

_PRODUCTS = {"matmul", "__matmul__", "bmm", "baddbmm", "einsum"}


class _Watcher(TorchFunctionMode):
    """Follows scores and weights through every function while an attention module runs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Watched] = []  # of the modules that are running, one inside the other

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See torch.overrides."""
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if self.calls and isinstance(result, torch.Tensor) and result.ndim >= 3:
            self._follow(self.calls[-1], getattr(function, "__name__", ""), args, kwargs, result)
        return result

    def _follow(self, call: Watched, name: str, args: Any, kwargs: Any, result: torch.Tensor) -> None:
        tensors = [tensor for tensor in (*args, *kwargs.values()) if isinstance(tensor, torch.Tensor)]
        if name == "softmax" and kwargs.get("dim", args[1] if len(args) > 1 else -1) in (-1, result.ndim - 1):
            _begin(call, tensors[0], result)
        elif name in _PRODUCTS and len(tensors) > 1:
            product = _product(name, args, kwargs, result)
            if weights := _weights_among(call, tensors):
                # A copy of the result: Nystromformer adds to it in place.
                weights.outputs.append(replace(product, result=product.result.clone()))
            else:
                call.origins[id(result)] = (result, product)
        elif origin := call.origin(tensors, result.numel()):
            call.origins[id(result)] = (result, origin)


def _begin(call: Watched, scores: torch.Tensor, weights: torch.Tensor) -> None:
    """Note a softmax, unless it is one of weights."""
    origin = call.origin([scores], weights.numel())
    if not isinstance(origin, Softmax):
        softmax = Softmax(scores, weights, origin)
        call.softmax.append(softmax)
        call.origins[id(weights)] = (weights, softmax)


def _weights_among(call: Watched, tensors: list[torch.Tensor]) -> Softmax | None:
    origins = (call.origins.get(id(tensor), (None, None))[1] for tensor in tensors)
    return next((origin for origin in origins if isinstance(origin, Softmax)), None)


def _product(name: str, args: Any, kwargs: Any, result: torch.Tensor) -> Product:
    if name == "einsum":
        return _einsum(args[0], args[1], args[2], result)
    left, right = [argument for argument in (*args, *kwargs.values()) if isinstance(argument, torch.Tensor)][-2:]
    return Product(left, right, result)


def _einsum(equation: str, left: torch.Tensor, right: torch.Tensor, result: torch.Tensor) -> Product:
    """Return a sum as a product: batch and heads first, then rows, columns, and what is summed over."""
    (first, second), output = equation.replace(" ", "").split("->")[0].split(","), equation.split("->")[1].strip()
    shared = "".join(letter for letter in output if letter in first and letter in second)
    summed = "".join(letter for letter in first if letter in second and letter not in output)
    rows = "".join(letter for letter in output if letter not in second)
    columns = "".join(letter for letter in output if letter not in first)
    return Product(
        torch.einsum(f"{first}->{shared}{rows}{summed}", left),
        torch.einsum(f"{second}->{shared}{summed}{columns}", right),
        torch.einsum(f"{output}->{shared}{rows}{columns}", result),
    )


@contextmanager
def recording(run: Recorder, model: Any) -> Iterator[None]:
    """Record the attention of a model's next forward pass by watching its softmax."""
    watcher = _Watcher()

    def begin(module: Any, *_: Any) -> None:
        watcher.calls.append(Watched())

    def end(module: Any, _: Any, given: Any, returned: Any) -> None:
        seen = watcher.calls.pop()
        if not seen.softmax or not run.places.has(module):
            return
        place = run.arrive(module)
        if place in run.wanted:
            _record(run, place, Ended(module, given, returned, seen, len(run.batch.spans), run.size(place)[0]))
            if run.is_last(place):
                raise Finished

    def keep(name: str, _: Any, given: Any, returned: Any) -> None:
        if watcher.calls and given:
            watcher.calls[-1].parts[name] = given[0], returned

    modules = [module for module in model.modules() if id(module) in run.places.modules]
    hooks = [module.register_forward_pre_hook(begin) for module in modules]
    hooks += [module.register_forward_hook(end, with_kwargs=True) for module in modules]
    for module in (module for module in modules if type(module).__name__ in layouts()):
        hooks += [part.register_forward_hook(partial(keep, name)) for name, part in module.named_children()]
    try:
        with watcher:
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _record(run: Recorder, place: Sublayer, call: Ended) -> None:
    layout = layouts().get(type(call.module).__name__)
    dense = _plain(call, place) if layout is None else layout(call)
    heads = run.heads_of(place, *dense.scores.shape[1:])
    captured = {name: getattr(dense, name) for name in ("scores", "weights", "q", "k", "v", "output")}
    run.capture(captured, lambda fetched: _keep(run, place, heads, replace(dense, **fetched)))


def _keep(run: Recorder, place: Sublayer, heads: tuple[int, ...], dense: Dense) -> None:
    """Record a layer of each sentence from its map, on the CPU."""
    for number in range(len(run.batch.spans)):
        rows, columns = run.cells(number, place)

        def own(tensor: torch.Tensor | None, side: slice, number: int = number) -> Any:
            return None if tensor is None else to_numpy(tensor[number, :, side])

        masked = own(dense.scores, rows)[..., columns]
        allowed = ~(masked <= FORBIDDEN)  # NaN is no mask
        q, k, v = own(dense.q, rows), own(dense.k, columns), own(dense.v, columns)
        layer = LayerTrace(
            layer=place[0],
            kind=place[1],
            q=q,
            k=k,
            v=v,
            scale=_scale(q, k, masked, allowed),
            mask=smallest(allowed[:1] if (allowed == allowed[:1]).all() else allowed, len(masked)),
            heads=heads,
            scores=np.where(allowed, masked, -np.inf).astype(masked.dtype),
            weights=own(dense.weights, rows)[..., columns],
            proof=None if dense.proofs is None else dense.proofs[number],
        )
        output = own(dense.output, rows)
        run.record(number, layer, None if output is None else output.swapaxes(0, 1), dense.against)


def _plain(call: Ended, place: Sublayer) -> Dense:
    """Return the map of a module whose scores have a row for every query and a column for every key."""
    # The widest queries first: LiLT's text, before its layout.
    softmax, *others = same = sorted(call.seen.softmax, key=_width, reverse=True)
    if any(not _equal(other.scores, softmax.scores) for other in others):
        raise NotExposedError(f"layer {place[0]} makes its weights of {len(others) + 1} softmax, no single one")
    scores, batch = softmax.scores, call.batch
    if scores.ndim > 4 or (scores.ndim == 3 and len(scores) % batch):
        raise NotExposedError(f"the scores of layer {place[0]} have shape {list(scores.shape)}, no [heads, Q, K]")
    outputs = [product for each in same for product in each.outputs]
    if any(not _same(product.left, softmax.weights) for product in outputs):
        raise NotExposedError(f"layer {place[0]} changes its weights after the softmax; that is not supported")

    def split(tensor: torch.Tensor) -> torch.Tensor:
        """Return `[B, heads, …]` of that or of `[B·heads, …]`."""
        return tensor.reshape(batch, -1, *tensor.shape[-2:])

    product = softmax.product
    q, k = (None, None) if product is None else (split(product.left), split(product.right).transpose(-1, -2))
    v, output = None, None
    if all(len(each.outputs) == 1 for each in same):
        # Several softmax of the same scores are one map (LiLT): their values stand side by side.
        v = torch.cat([split(each.right) for each in outputs], dim=-1)
        output = torch.cat([split(each.result) for each in outputs], dim=-1)
    return Dense(split(scores), split(softmax.weights), q, k, v, output)


def _width(softmax: Softmax) -> int:
    return 0 if softmax.product is None else softmax.product.left.shape[-1]


def _equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.shape == right.shape and torch.allclose(left, right, rtol=0, atol=0, equal_nan=True)


def _same(left: torch.Tensor, weights: torch.Tensor) -> bool:
    """Whether the left operand of a product is the weights, in whatever shape and precision."""
    shapes = left.reshape(-1, *left.shape[-2:]), weights.reshape(-1, *weights.shape[-2:])
    if shapes[0].shape != shapes[1].shape:
        return False
    return torch.allclose(shapes[0].float(), shapes[1].float(), atol=1e-2, equal_nan=True)


def _scale(q: Any, k: Any, scores: np.ndarray[Any, Any], allowed: np.ndarray[Any, Any]) -> float | None:
    """Return what q·k is multiplied with to give the scores, or None if more was done to them."""
    if q is None:
        return None
    products = (q @ np.repeat(k, len(q) // len(k), axis=0).swapaxes(-1, -2))[allowed]
    known = scores[allowed]
    scale = float(np.vdot(products, known) / max(np.vdot(products, products), np.finfo(np.float32).tiny))
    usual = (1.0, q.shape[-1] ** -0.5)
    scale = next((each for each in usual if abs(scale / each - 1) < 1e-4), scale)
    return scale if np.allclose(known, products * scale, rtol=1e-4, atol=1e-5) else None
