"""The axes of an attention that is written out: of its two products, and its tensors as `[B, H, …]`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attncli.attention import FORBIDDEN_BELOW
from attncli.recording.call import CallSite, CallSlices, PositionSlice
from attncli.recording.readers.origins import Change, Factor, Held, Operand, Product, Scores, SoftmaxCall, head_axes

# Also where the program puts a function of its own in its place, which is not to be called by us.
_softmax = torch._C._VariableFunctions.softmax

Labels = tuple[object, ...]
PRODUCTS = ("matmul", "bmm", "mm", "__matmul__", "einsum", "baddbmm")


class Contraction(NamedTuple):
    """Two tensors that were multiplied and summed, with labels of their axes and of the result's."""

    left: Tensor
    right: Tensor
    first: Labels  # labels of the axes of `left`
    second: Labels  # of `right`
    out: Labels  # of the result
    added: tuple[Tensor, float, float] | None = None  # what it was added to, and both factors (`baddbmm`)

    def turned(self) -> Contraction:
        """Return the same with the second tensor first."""
        return self._replace(left=self.right, right=self.left, first=self.second, second=self.first)

    @property
    def summed(self) -> list[object]:
        """The labels that are summed over."""
        return [label for label in self.first if label in self.second and label not in self.out]


def contraction(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Contraction | None:
    """Return what one of `PRODUCTS` multiplied, each as an einsum; None unless it was two tensors of several axes."""
    tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
    equation, added = "...ls,...sr->...lr", None
    if name == "einsum":
        equation, tensors = args[0], tensors or args[1]
    elif name == "baddbmm":
        added = tensors.pop(0), float(kwargs.get("beta", 1)), float(kwargs.get("alpha", 1))
    is_known = isinstance(equation, str) and "->" in equation
    if not is_known or len(tensors) != 2 or any(each.ndim < 2 for each in tensors):
        return None
    labels = _labels(equation, *(each.ndim for each in tensors))
    return None if labels is None else Contraction(tensors[0], tensors[1], *labels, added)


@cache
def _labels(equation: str, *axes: int) -> tuple[Labels, Labels, Labels] | None:
    """Return the letters of both factors and of the result; the axes of an ellipsis are numbered from its right."""
    *factors, out = re.split(",|->", equation.replace(" ", ""))

    def labels(part: str, count: int) -> Labels:
        dots = range(count - len(part.replace("...", "")) - 1, -1, -1)
        return tuple(one for each in re.findall(r"\.\.\.|.", part) for one in (dots if each == "..." else [each]))

    first, second = map(labels, factors, axes)
    dots = max((label for label in (*first, *second) if isinstance(label, int)), default=-1) + 1
    result = labels(out, len(out.replace("...", "")) + dots)
    is_of_each_once = all(len({*each}) == len(each) for each in (first, second, result))
    return (first, second, result) if is_of_each_once else None


def product_of(matmul: Contraction, result: Tensor, factors: tuple[Factor, Factor]) -> tuple[Product, Tensor] | None:
    """Return a product, and the axes of the result as the program has them; None where it makes no pairs."""
    sides, out, tensors = (matmul.first, matmul.second), matmul.out, (matmul.left, matmul.right)
    own = [[each for each in out if each in side and each not in other] for side, other in (sides, sides[::-1])]
    lone = {*matmul.first, *matmul.second} - {*out, *matmul.summed}
    if lone or len(matmul.summed) != 1 or not all(own):
        return None
    heads = {
        labels[axis]
        for tensor, labels, factor in zip(tensors, sides, factors, strict=True)
        for axis in head_axes(tensor, labels.index(matmul.summed[0])) | factor.head_axes
    }
    rows = [labels[-1] for labels in own]  # the positions, as far as is known yet
    shared = [label for label in out if label in matmul.first and label in matmul.second]
    shared.sort(key=heads.__contains__)  # the batch comes first
    batch = [*shared, *(label for label in (*own[0], *own[1]) if label not in rows)]
    order = [*batch, *rows]
    axes = torch.empty([result.shape[out.index(label)] for label in order], device="meta")
    left, right = (
        Operand(tensor, in_order(tensor, labels, [*batch, row, *matmul.summed]), len(each), factor)
        for tensor, labels, row, each, factor in zip(tensors, sides, rows, own, factors, strict=True)
    )
    head_places = frozenset(i for i, label in enumerate(order) if label in heads)
    product = Product(left, right, axes, len(shared), result.dtype, head_places)
    return product, axes.permute([order.index(label) for label in out])


def joined_product(one: Scores, two: Scores) -> tuple[Product, Tensor] | None:
    """Return the sum of two products as one, with factors side by side, as MLA adds its two parts; and its axes.

    None is that both are scaled or laid out otherwise.
    """
    product, last = one.product, two.product.axes.ndim - 1
    if one.scale != two.scale or not all(each.product.is_of_pairs and each.joined is None for each in (one, two)):
        return None
    places = [product.axis(one.axes, i) for i in range(one.axes.ndim)]
    for axis in range(last - 1, -1, -1):
        other = two.product.with_row(axis, last - 1)
        if other.axes.shape == product.axes.shape and places == [other.axis(two.axes, i) for i in range(two.axes.ndim)]:
            left, right = product.left.joined(other.left), product.right.joined(other.right)
            if left is None or right is None:
                return None
            return product._replace(left=left, right=right, head_axes=product.head_axes | other.head_axes), one.axes
    return None


class Points:
    """An attention at its three points, tensors as `[B, H, …]`; None are those that were changed since.

    Attributes:
        softmax_at: how many of the changes are before the softmax.
        wrong_axis: what the softmax is over, if it is not the keys.
        scores: what the softmax received; `weights` what it gave, and `final` what met the values.
    """

    @classmethod
    def of(
        cls, weights: Scores, matmul: Contraction, result: Tensor, earlier: dict[tuple[Any, ...], int], place: CallSite
    ) -> Points | None:
        """Return the points of weights, the left factor of a product; None unless queries weigh keys."""
        if len(matmul.summed) != 1 or weights.softmax is None or weights.axes.shape != matmul.left.shape:
            return None
        product = weights.product.unfolded([weights.softmax.scores.axes, *(each.axes for each in weights.changes)])
        places = {label: product.axis(weights.axes, index) for index, label in enumerate(matmul.first)}
        last = product.axes.ndim - 1
        keys = places[matmul.summed[0]]
        if keys == -1:  # of one position
            keys = next((axis for axis in (last, last - 1) if product.axes.shape[axis] == 1), None)
        if keys not in (last, last - 1):
            return None
        k, q = (product.right, product.left) if keys == last else (product.left, product.right)
        if k.positions > 1 or k.is_learned or (k.ndim == 2 and q.ndim > 2):
            return None  # rows of a parameter or a table are classes, words or experts
        row = 2 * last - 1 - keys
        right = zip(matmul.second, matmul.right.shape, matmul.right.stride(), strict=True)
        of_values = {places.get(label) for label, size, step in right if label in places and size > 1 and step}
        queries, sizes, tensor = row, product.axes.shape, k.tensor
        lacking = [
            axis for axis in range(last - 1)
            if tensor is not None and (axis or sizes[axis] > 1) and (tensor.shape[axis] == 1 or not tensor.stride(axis))
        ]  # fmt: skip
        if lacking:  # no axis of heads, as far as these are known, nor of the values
            axes = [axis for axis in (*lacking, row) if axis not in product.head_axes | of_values] or [*lacking, row]
            queries = _query_axis(product, row, axes, weights.changes, earlier, (place, last, product.shared))
        if queries in of_values:  # values of each query's own are no values
            return None
        return cls(weights, weights.softmax, product.with_row(queries, row), keys, matmul, result)

    def __init__(
        self, weights: Scores, softmax: SoftmaxCall, product: Product, keys: int, matmul: Contraction, result: Tensor
    ) -> None:
        self.origin, self.changes, self.product = weights, weights.changes, product
        self._softmax_axes, self.softmax_at = softmax.scores.axes, len(softmax.scores.changes)
        self.keys_are_left = keys != product.axes.ndim - 1
        self.q_side, self.k_side = (product.left, product.right)[:: -1 if self.keys_are_left else 1]
        *outer, rows, columns = product.axes.shape
        self.shape = *_batch_and_heads(product, outer), *((columns, rows) if self.keys_are_left else (rows, columns))
        self.wrong_axis = self._wrong_axis(product.axis(self._softmax_axes, softmax.axis))
        q, k = self.q_side.tensor, self.k_side.tensor
        self.q = self.k = self.slices = None
        if q is not None and k is not None:
            self.slices = CallSlices(PositionSlice.of(q, self.q_side.base), PositionSlice.of(k, self.k_side.base))
            self.q, self.k = map(self._with_heads, (q, k.reshape(*k.shape[: product.shared], *k.shape[-2:])))
        self.v, self.output = self._values(matmul, result)
        self.final = self.four(matmul.left.detach(), weights.axes)
        self.scores, self.weights = self._held(softmax.received), self._held(softmax.result)
        joined = None if weights.joined is None else weights.joined.tensor
        self.sinks = None if joined is None else compact(self.four(joined[..., -1:], self._softmax_axes)[..., :1])
        if self.weights is None and weights.joined is None and self.scores is not None and self.wrong_axis is None:
            self.weights = _softmax(self.scores, -1)  # as it was before it was changed in place

    def tensor(self, change: Change) -> Tensor | None:
        """Return what a change was done with, if it is a tensor, as `[B, H, Q, K]`."""
        if (tensor := change.tensor) is None:
            return None
        values = self.four(tensor, change.axes)
        return values if values.stride() == tensor.stride() else compact(values)

    def four(self, tensor: Tensor, moved: Tensor) -> Tensor:
        """Return a tensor that broadcasts to scores whose axes moved, as `[B, H, Q, K]`."""
        own = self.product.axes
        if own.ndim == 4 and moved.shape == own.shape and moved.stride() == own.stride():
            tensor = tensor[(None,) * (4 - tensor.ndim)]
        else:
            tensor = self.product.undone(tensor, moved)
        return self._with_heads(tensor.mT if self.keys_are_left else tensor)

    def _with_heads(self, tensor: Tensor) -> Tensor:
        """Return `[B, H, …]` of a tensor with two more axes than some of batch and heads."""
        batch, heads, *_ = self.shape
        *outer, rows, columns = tensor.shape
        if len(outer) == 2:
            return tensor
        if all(size == 1 for size in outer) and (batch * heads > 1 or len(outer) != 1):
            return tensor.reshape(1, 1, rows, columns)
        if len(outer) == 1:
            return tensor.reshape(batch, -1, rows, columns)
        return tensor.expand(outer[0], *self.product.axes.shape[1 : len(outer)], rows, columns).flatten(1, -3)

    def _wrong_axis(self, over: int | None) -> str | None:
        """Return what a softmax is over, if it is not the keys; an axis that is not known is right."""
        last = self.product.axes.ndim - 1
        if over is None or over == last - self.keys_are_left or (over < 0 and self.shape[3] == 1):
            return None
        names = {-1: "an axis of one position", 0: "the batch", last - 1: "the queries", last: "the queries"}
        return names.get(over, "the heads")

    def _held(self, held: Held) -> Tensor | None:
        return None if held.tensor is None else self.four(held.tensor, self._softmax_axes)

    def _values(self, matmul: Contraction, result: Tensor) -> tuple[Tensor | None, Tensor | None]:
        batch, heads, queries, keys = self.shape
        (summed,), axes = matmul.summed, self.origin.axes
        width = [label for label in matmul.out if label not in matmul.first]
        if not width:
            return None, None
        last = self.product.axes.ndim - 1 - self.keys_are_left  # of the keys
        rest = [label for label in matmul.first if label != summed and label in matmul.second]
        rest.sort(key=lambda label: self.product.axis(axes, matmul.first.index(label)) or 0)
        values = in_order(matmul.right.detach(), matmul.second, [*rest, summed, *width]).flatten(-len(width))
        output = in_order(result.detach(), matmul.out, [*matmul.first, *width]).flatten(-len(width))
        whole = None
        if output.numel() == batch * heads * queries * output.shape[-1]:
            whole = self.product.undone(output, axes, last).squeeze(last).reshape(batch, heads, queries, -1)
        return self._with_heads(values) if values.shape[-2] == keys else None, whole


def _query_axis(
    product: Product, row: int, axes: list[int], changes: Iterable[Change], earlier: dict[Any, int], key: Any
) -> int:
    """Return the axis of the queries: a mask differs along it, or it was it before, or it is as long as the keys."""
    sizes = product.axes.shape
    fits = axes if len(axes) == 1 else _masked_axes(product, axes, changes)
    if len(fits) != 1:
        fits = [earlier[key]] if earlier.get(key) in axes else []
    if not fits and (row not in axes or sizes[row] > 1):
        fits = [axis for axis in axes if sizes[axis] == sizes[2 * product.axes.ndim - 3 - row]]
    if len(fits) == 1:
        earlier[key] = fits[0]
        return fits[0]
    return row if row in axes else axes[-1]


def _masked_axes(product: Product, axes: list[int], changes: Iterable[Change]) -> list[int]:
    """Return those of some axes along which a mask differs; the first mask that differs along one alone decides."""
    for change in changes:
        if (tensor := change.tensor) is not None:
            values = product.undone(tensor, change.axes)
            hidden = values if values.dtype == torch.bool else values <= FORBIDDEN_BELOW
            fits = [axis for axis in axes if bool((hidden != hidden.narrow(axis, 0, 1)).any())]
            if len(fits) == 1:
                return fits
    return []


def _batch_and_heads(product: Product, outer: list[int]) -> tuple[int, int]:
    """Return how many batch rows and heads there are; heads may be folded into the batch."""
    if len(outer) != 1:
        return (outer[0], math.prod(outer[1:])) if outer else (1, 1)
    heads = max(product.left.heads, product.right.heads)
    return (outer[0] // heads, heads) if outer[0] % heads == 0 else (outer[0], 1)


def in_order(tensor: Tensor, labels: Iterable[object], order: Iterable[object]) -> Tensor:
    """Return a tensor with axes in the order of their labels; those that it does not have are 1."""
    labels, order = [*labels], [*order]
    tensor = tensor.permute([labels.index(label) for label in order if label in labels])
    for at, label in enumerate(order):
        if label not in labels:
            tensor = tensor.unsqueeze(at)
    return tensor


def compact(values: Tensor) -> Tensor:
    """Return values with one entry along each axis along which they are all equal."""
    for axis, length in enumerate(values.shape):
        first = values.narrow(axis, 0, 1)
        if length > 1 and (values.stride(axis) == 0 or bool((values == first).all())):
            values = first
    return values
