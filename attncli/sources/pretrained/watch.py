"""The second way in: the softmax of models that never call the attention function.

Such a model runs eagerly, unchanged, while every function it calls inside an attention module is watched: the
product of queries and keys, whatever is done to it, the softmax that takes it and gives the weights, and the
product of the weights with the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from attncli.errors import NotExposedError
from attncli.files import to_numpy
from attncli.masks.expressions import smallest
from attncli.sources.pretrained.recording import Finished, Recorder, Sublayer
from attncli.trace.layer import LayerTrace

# What a model adds to a forbidden score is −1e4 at the least, and no score comes near: below this it is masked.
_FORBIDDEN = -5e3

_PRODUCTS = {"matmul", "__matmul__", "bmm", "baddbmm", "einsum"}


@dataclass(frozen=True)
class _Product:
    """A matrix product of two tensors, with its operands as `[…, rows, width]` and `[…, width, columns]`."""

    left: torch.Tensor
    right: torch.Tensor
    result: torch.Tensor


@dataclass
class _Watched:
    """What happened in one call of one attention module.

    Attributes:
        origins: of a tensor, by its `id`, the product of queries and keys or the weights that it was made of; with
            the tensor itself, lest another one gets its id.
        softmax: the scores and the weights of every softmax over the keys, and what the scores were made of.
        outputs: the products of the weights with the values.
    """

    origins: dict[int, tuple[torch.Tensor, _Product | str]] = field(default_factory=dict)
    softmax: list[tuple[torch.Tensor, torch.Tensor, _Product | None]] = field(default_factory=list)
    outputs: list[_Product] = field(default_factory=list)

    def origin(self, tensors: list[torch.Tensor], numel: int) -> _Product | str | None:
        """Return what a result was made of: the origin of its first operand with as many elements as it has."""
        found = (self.origins.get(id(tensor)) for tensor in tensors if tensor.numel() == numel)
        return next((entry[1] for entry in found if entry is not None), None)


class _Watcher(TorchFunctionMode):
    """Follows scores and weights through every function while an attention module runs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Watched] = []  # of the modules that are running, one inside the other

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See torch.overrides."""
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if self.calls and isinstance(result, torch.Tensor) and result.ndim >= 3:
            self._follow(self.calls[-1], getattr(function, "__name__", ""), args, kwargs, result)
        return result

    def _follow(self, call: _Watched, name: str, args: Any, kwargs: Any, result: torch.Tensor) -> None:
        tensors = [tensor for tensor in (*args, *kwargs.values()) if isinstance(tensor, torch.Tensor)]
        if name == "softmax" and kwargs.get("dim", args[1] if len(args) > 1 else -1) in (-1, result.ndim - 1):
            origin = call.origin(tensors[:1], result.numel())
            if origin != "weights":
                call.softmax.append((tensors[0], result, origin if isinstance(origin, _Product) else None))
                call.origins[id(result)] = (result, "weights")
        elif name in _PRODUCTS and len(tensors) > 1:
            product = _product(name, args, kwargs, result)
            if any(call.origins.get(id(tensor), (None, None))[1] == "weights" for tensor in tensors):
                # A copy of the result: Nystromformer adds to it in place.
                call.outputs.append(replace(product, result=product.result.clone()))
            else:
                call.origins[id(result)] = (result, product)
        elif origin := call.origin(tensors, result.numel()):
            call.origins[id(result)] = (result, origin)


def _product(name: str, args: Any, kwargs: Any, result: torch.Tensor) -> _Product:
    if name == "einsum":
        return _einsum(args[0], args[1], args[2], result)
    left, right = [argument for argument in (*args, *kwargs.values()) if isinstance(argument, torch.Tensor)][-2:]
    return _Product(left, right, result)


def _einsum(equation: str, left: torch.Tensor, right: torch.Tensor, result: torch.Tensor) -> _Product:
    """Return a sum as a product: batch and heads first, then rows, columns, and what is summed over."""
    (first, second), output = equation.replace(" ", "").split("->")[0].split(","), equation.split("->")[1].strip()
    shared = "".join(letter for letter in output if letter in first and letter in second)
    summed = "".join(letter for letter in first if letter in second and letter not in output)
    rows = "".join(letter for letter in output if letter not in second)
    columns = "".join(letter for letter in output if letter not in first)
    return _Product(
        torch.einsum(f"{first}->{shared}{rows}{summed}", left),
        torch.einsum(f"{second}->{shared}{summed}{columns}", right),
        torch.einsum(f"{output}->{shared}{rows}{columns}", result),
    )


@contextmanager
def recording(run: Recorder, model: Any) -> Iterator[None]:
    """Record the attention of a model's next forward pass by watching its softmax."""
    watcher = _Watcher()
    chunks: list[_Watched] = []  # of a layer that runs the same attention for one part of the text after the other
    chunked = {id(module.self) for module in model.modules() if getattr(module, "local", False) is True}  # CANINE

    def begin(module: Any, *_: Any) -> None:
        watcher.calls.append(_Watched())

    def end(module: Any, *_: Any) -> None:
        call = watcher.calls.pop()
        if id(module) in chunked:
            chunks.append(call)
            return
        if chunks and not call.softmax:
            call = _joined(chunks)
            chunks.clear()
        if not call.softmax:
            return
        place = run.arrive(module)
        if place in run.wanted:
            _record(run, place, call)
            if run.is_last(place):
                raise Finished

    modules = [module for module in model.modules() if id(module) in run.places.modules]
    hooks = [module.register_forward_pre_hook(begin) for module in modules]
    hooks += [module.register_forward_hook(end) for module in modules]
    try:
        with watcher:
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _joined(chunks: Sequence[_Watched]) -> _Watched:
    """Return the attention of consecutive parts of a text, each to itself alone, as one over all of it."""
    softmax, outputs = [chunk.softmax[0] for chunk in chunks], [chunk.outputs[0] for chunk in chunks]
    products = [product for *_, product in softmax if product is not None]
    length = sum(own.shape[2] for own, *_ in softmax)
    scores = softmax[0][0].new_full((*softmax[0][0].shape[:2], length, length), -torch.inf)
    weights = torch.zeros_like(scores)
    start = 0
    for own, given, _ in softmax:
        cells = slice(start, start + own.shape[2])
        scores[:, :, cells, cells], weights[:, :, cells, cells] = own, given
        start = cells.stop
    left, right = (
        torch.cat(sides, dim=-2) for sides in zip(*((each.left, each.right.mT) for each in products), strict=True)
    )
    values, results = (
        torch.cat(sides, dim=-2) for sides in zip(*((each.right, each.result) for each in outputs), strict=True)
    )
    product = _Product(left, right.mT, scores)
    return _Watched(softmax=[(scores, weights, product)], outputs=[_Product(weights, values, results)])


def _record(run: Recorder, place: Sublayer, call: _Watched) -> None:
    if len(call.softmax) > 1:
        raise NotExposedError(f"layer {place[0]} makes its weights of {len(call.softmax)} softmax, no single one")
    scores, weights, product = call.softmax[0]
    batch = len(run.batch.spans)
    if scores.ndim > 4 or (scores.ndim == 3 and len(scores) % batch):
        raise NotExposedError(f"the scores of layer {place[0]} have shape {list(scores.shape)}, no [heads, Q, K]")

    def own(tensor: torch.Tensor, number: int) -> torch.Tensor:
        """One sentence of `[B, heads, …]` or `[B·heads, …]`."""
        return tensor.reshape(batch, -1, *tensor.shape[-2:])[number]

    heads = run.heads_of(place, *own(scores, 0).shape)
    if any(not _same(product.left, weights) for product in call.outputs):
        raise NotExposedError(f"layer {place[0]} changes its weights after the softmax; that is not supported")
    output = call.outputs[0] if len(call.outputs) == 1 else None
    for number in range(batch):
        rows, columns = run.cells(number, place)
        masked = to_numpy(own(scores, number)[:, rows, columns])
        allowed = ~(masked <= _FORBIDDEN)  # NaN is no mask
        q = None if product is None else to_numpy(own(product.left, number)[:, rows])
        k = None if product is None else to_numpy(own(product.right, number).transpose(-1, -2)[:, columns])
        layer = LayerTrace(
            layer=place[0],
            kind=place[1],
            q=q,
            k=k,
            v=None if output is None else to_numpy(own(output.right, number)[:, columns]),
            scale=_scale(q, k, masked, allowed),
            mask=smallest(allowed[:1] if (allowed == allowed[:1]).all() else allowed, len(masked)),
            heads=heads,
            scores=np.where(allowed, masked, -np.inf).astype(masked.dtype),
            weights=to_numpy(own(weights, number)[:, rows, columns]),
        )
        result = None if output is None else to_numpy(own(output.result, number)[:, rows].transpose(0, 1))
        run.record(number, layer, result, "the model's own product")


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
