"""Copies out of a running program: masks as small as they were, and the tensors of a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from attncli.attention import FORBIDDEN_BELOW
from attncli.files import to_numpy
from attncli.recording.call import AttentionCall, MaskArgument

if TYPE_CHECKING:
    import torch

Value = TypeVar("Value")
_MOST_TENSORS = 64  # tensors that are recognized when they come again


def mask_values(argument: MaskArgument) -> np.ndarray[Any, Any]:
    """Return the values of a mask, without what the program only repeats; bfloat16 comes as float32."""
    return to_numpy(_compact(argument.values))


def detached(call: AttentionCall) -> AttentionCall:
    """Return a call that holds copies, on the CPU, of what its traces are made of, and nothing of the program's.

    Scores and weights are quadratic in the length; they are kept only where q, k and the scale do not give them, as
    they do not for a query that sees no key: that depends on the fill.
    """
    has_inputs = call.project is not None or (call.q is not None and call.k is not None)
    is_derived = has_inputs and call.scale is not None and call.unsupported is None
    if is_derived and (call.weights is None or not _has_blind_rows(call.masks)):
        call = replace(call, scores=None, weights=None)
    masks = tuple(one._replace(values=_compact(one.values).cpu().clone(), source_tensor=None) for one in call.masks)
    tensors: dict[str, Any] = {name: _copy(getattr(call, name)) for name in ("sinks", "scores", "weights", "output")}
    inputs = call.project() if call.q is None and call.project is not None else (call.q, call.k, call.v)
    q, k, v = map(_copy, inputs)
    return replace(call, q=q, k=k, v=v, project=None, masks=masks, ignored_masks=(), projections=(), **tensors)


def _has_blind_rows(masks: Sequence[MaskArgument]) -> bool:
    allowed = [one.values > FORBIDDEN_BELOW if one.convention == "additive" else
               one.values.bool() if one.convention == "attend" else one.values == 0 for one in masks]  # fmt: skip
    return bool(allowed) and not bool(reduce(and_, allowed).any(-1).all())


def has_nan(*tensors: torch.Tensor | None) -> bool:
    """Return whether a NaN is in one of some tensors of floats."""
    return any(bool(one.detach().isnan().any()) for one in tensors if one is not None)


def is_zero(call: AttentionCall, row: int, head: int, query: int) -> bool | None:
    """Return whether the output of a query of a head and a batch row is 0; None where it is not known."""
    output, (_, heads, queries, _) = call.output, call.shape
    if output is None or output.dim() != 4 or tuple(output.shape[1:3]) != (heads, queries):
        return None
    return not bool(output[min(row, len(output) - 1), head, query].detach().any())


class TensorCache(Generic[Value]):
    """Values that are known of masks, for as long as these are the same; it keeps none of them alive.

    A tensor is the same one while its storage lives and PyTorch has counted no change of it, as it never does in
    inference mode. Changes by NumPy in shared memory are not seen.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[Any, ...], tuple[Any, Value]] = {}  # and the storage of each

    def get(self, argument: MaskArgument, dtype: str, make: Callable[[], Value]) -> Value:
        """Return what is known of a mask in a call of this dtype, or make it."""
        from torch.multiprocessing.reductions import StorageWeakRef

        tensor = argument.values if argument.source_tensor is None else argument.source_tensor  # the program's own
        if tensor.is_inference():
            return make()
        storage = tensor.untyped_storage()
        layout = storage._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
        key = (*layout, tensor._version, argument.name, argument.convention, argument.values.shape, dtype)
        cached = self._values.get(key)
        if cached is None or cached[0].expired():
            alive = {key: one for key, one in self._values.items() if not one[0].expired()}
            self._values = alive if len(alive) < _MOST_TENSORS else {}
            cached = self._values[key] = StorageWeakRef(storage), make()  # type: ignore[no-untyped-call]
        return cached[1]


def _compact(values: torch.Tensor) -> torch.Tensor:
    """Return a view of four axes without what an expanded tensor repeats."""
    values = values.detach().reshape((1,) * (4 - values.dim()) + tuple(values.shape))
    for axis, step in enumerate(values.stride()):
        if step == 0 and values.shape[axis] > 1:
            values = values.narrow(axis, 0, 1)
    return values


def _copy(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Return a copy on the CPU; a view would keep the program's tensor alive."""
    return None if tensor is None else tensor.detach().cpu().clone()
