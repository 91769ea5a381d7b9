"""Reads the attention of models that never call transformers' attention function: they write their softmax out.

Such a model runs eagerly, unchanged, while every function that it calls is looked at: the product of queries and keys,
whatever is done to it, the softmax that takes it and gives the weights, and the product of the weights with the values.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from attncli.recording.call import AttentionCall, CallSite, MaskArgument
from attncli.trace.layer import LayerTrace

# What a model adds to a forbidden score is −1e4 at the least, and no score comes near: below this it is masked.
FORBIDDEN = -5e3

_PRODUCTS = {"matmul", "__matmul__", "bmm", "baddbmm", "einsum"}


class _Product(NamedTuple):
    """A matrix product, with its operands as `[…, rows, width]` and `[…, width, columns]`."""

    left: torch.Tensor
    right: torch.Tensor
    result: torch.Tensor


class _Softmax(NamedTuple):
    """A softmax over keys, and the product of queries and keys that its scores were made of, if there is one."""

    scores: torch.Tensor
    weights: torch.Tensor
    product: _Product | None


class SoftmaxTracer(TorchFunctionMode):
    """Follows scores and weights through every function, and emits a call where weights meet values.

    Args:
        wants: says whether what the innermost attention module computes is to be emitted.
        emit: takes it; the module is None.
        batch: how many sentences run.
    """

    def __init__(self, wants: Callable[[], bool], emit: Callable[[Any, AttentionCall], None], batch: int) -> None:
        super().__init__()
        self._wants, self._emit, self._batch = wants, emit, batch
        self._origins: MutableMapping[torch.Tensor, Any] = (
            WeakIdKeyDictionary()
        )  # of a tensor, the product or the softmax that it was made of

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See torch.overrides."""
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if isinstance(result, torch.Tensor) and result.ndim >= 3:
            self._follow(getattr(function, "__name__", ""), args, kwargs, result)
        return result

    def _follow(self, name: str, args: Any, kwargs: Any, result: torch.Tensor) -> None:
        tensors = [tensor for tensor in (*args, *kwargs.values()) if isinstance(tensor, torch.Tensor)]
        if name == "softmax" and kwargs.get("dim", args[1] if len(args) > 1 else -1) in (-1, result.ndim - 1):
            origin = self._origin(tensors, result)
            if not isinstance(origin, _Softmax):  # else it is one of weights
                self._origins[result] = _Softmax(tensors[0], result, origin)
        elif name in _PRODUCTS and len(tensors) > 1:
            product = _product(name, args, tensors, result)
            origins = (self._origins.get(tensor) for tensor in tensors)
            softmax = next((origin for origin in origins if isinstance(origin, _Softmax)), None)
            if softmax is None:
                self._origins[result] = product
            elif self._wants():
                self._emit(None, _to_call(softmax, product, self._batch))
        elif (origin := self._origin(tensors, result)) is not None:
            self._origins[result] = origin

    def _origin(self, tensors: list[torch.Tensor], result: torch.Tensor) -> _Product | _Softmax | None:
        """Return what a result was made of: the origin of its first operand with as many elements as it has."""
        origins = (self._origins.get(tensor) for tensor in tensors if tensor.numel() == result.numel())
        return next((origin for origin in origins if origin is not None), None)


def _product(name: str, args: Any, tensors: list[torch.Tensor], result: torch.Tensor) -> _Product:
    """Return a product; of an einsum, batch and heads first, then rows, columns, and what is summed over."""
    left, right = tensors[-2:]
    if name != "einsum":
        return _Product(left, right, result)
    (first, second), output = args[0].replace(" ", "").split("->")[0].split(","), args[0].split("->")[1].strip()
    shared = "".join(letter for letter in output if letter in first and letter in second)
    summed = "".join(letter for letter in first if letter in second and letter not in output)
    rows = "".join(letter for letter in output if letter not in second)
    columns = "".join(letter for letter in output if letter not in first)
    return _Product(
        torch.einsum(f"{first}->{shared}{rows}{summed}", left),
        torch.einsum(f"{second}->{shared}{summed}{columns}", right),
        torch.einsum(f"{output}->{shared}{rows}{columns}", result),
    )


def _to_call(softmax: _Softmax, product: _Product, batch: int) -> AttentionCall:
    """Return the attention of weights that met values."""
    scores, weights = softmax.scores, softmax.weights
    unsupported = None
    if scores.ndim > 4 or (scores.ndim == 3 and len(scores) % batch):
        unsupported = f"has scores of shape {list(scores.shape)}, not [heads, Q, K]"
    elif not _is_same(product.left, weights):
        unsupported = "changes its weights after the softmax; that is not supported"

    def split(tensor: torch.Tensor) -> torch.Tensor:
        """Return `[B, heads, …]` of that or of `[B·heads, …]`."""
        return tensor.reshape(batch, -1, *tensor.shape[-2:])

    q, k = (None, None) if softmax.product is None else (softmax.product.left, softmax.product.right.mT)
    # A copy of the result: Nystromformer adds to it in place.
    return softmax_call(
        split(scores), split(weights), None if q is None else split(q), None if k is None else split(k),
        split(product.right), split(product.result.clone()), unsupported,
    )  # fmt: skip


def softmax_call(
    scores: torch.Tensor,
    weights: torch.Tensor,
    q: torch.Tensor | None,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    output: torch.Tensor | None,
    unsupported: str | None = None,
) -> AttentionCall:
    """Return a call by what its softmax received, `[B, H, Q, K]`, with −inf or a large number where it is masked."""
    batch, heads, queries, keys = scores.shape
    return AttentionCall(
        api="softmax",
        place=CallSite("", 0, "", None),
        shape=(batch, heads, queries, keys),
        dtype=str(scores.dtype).removeprefix("torch."),
        device=str(scores.device),
        q=q,
        k=k,
        v=v,
        masks=(MaskArgument("scores", scores <= FORBIDDEN, "masked"),),  # NaN is no mask
        scores=scores,
        weights=weights,
        output=output,
        output_of="the model's own product",
        unsupported=unsupported,
    )


def _is_same(left: torch.Tensor, weights: torch.Tensor) -> bool:
    """Whether the left operand of a product is the weights, in whatever shape and precision."""
    shapes = left.reshape(-1, *left.shape[-2:]), weights.reshape(-1, *weights.shape[-2:])
    if shapes[0].shape != shapes[1].shape:
        return False
    return torch.allclose(shapes[0].float(), shapes[1].float(), atol=1e-2, equal_nan=True)


def fitted_scale(layer: LayerTrace) -> float | None:
    """Return what q·k is multiplied with to give the recorded scores, or None if more was done to them."""
    q, k, scores = layer.q, layer.k, layer.scores
    if q is None or k is None or scores is None:
        return None
    allowed = scores > -np.inf
    products = (q @ np.repeat(k, len(q) // len(k), axis=0).swapaxes(-1, -2))[allowed]
    expected = scores[allowed]
    scale = float(np.vdot(products, expected) / max(np.vdot(products, products), np.finfo(np.float32).tiny))
    common = (1.0, q.shape[-1] ** -0.5)
    scale = next((each for each in common if abs(scale / each - 1) < 1e-4), scale)
    return scale if np.allclose(expected, products * scale, rtol=1e-4, atol=1e-5) else None
