"""The axes of an attention that is written out: which are queries and keys, and its tensors as `[B, H, …]`."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attncli.recording.readers.contraction import Contraction
from attncli.recording.readers.origins import Change, Held, Operand, Product, Weights, in_order

# Also where the program puts a function of its own in its place, which is not to be called by us.
_softmax = torch._C._VariableFunctions.softmax


class Axes(NamedTuple):
    """Which axes of a product are queries and keys, and the four axes of the call.

    Attributes:
        product: of queries and keys.
        q: the queries.
        k: the keys.
        order: the axes of the product's result, as batch and heads, queries, keys.
        shape: `(B, H, Q, K)`.
        wrong: what the softmax is over, if it is not the keys.
        places: for each label of the weights, which axis of the product's result it is; see `Product.axis`.
    """

    product: Product
    q: Operand
    k: Operand
    order: tuple[int, ...]
    shape: tuple[int, int, int, int]
    wrong: str | None
    places: dict[object, int | None]

    @classmethod
    def of(cls, weights: Weights, found: Contraction) -> Axes | None:
        """Return the axes of weights, the left factor of a product; None of what is no weights of queries on keys."""
        scores = weights.scores
        if len(found.summed) != 1 or scores.axes.shape != found.left.shape:
            return None
        product = scores.product
        places = {label: product.axis(scores.axes, index) for index, label in enumerate(found.first)}
        size = dict(zip(product.out, product.axes.shape, strict=True))
        rows, columns = product.own(product.left), product.own(product.right)
        if (summed := places[found.summed[0]]) is None:
            return None
        several = [product.out[summed]] if summed >= 0 else [label for label in (*columns, *rows) if size[label] == 1]
        keys = next((label for label in several if label in (*rows, *columns)), None)
        k, q = (product.right, product.left) if keys in columns else (product.left, product.right)
        if product.own(k) != [keys] or k.is_learned or (len(k.shape) == 2 and len(q.shape) > 2):
            return None  # rows of a parameter or a table are classes, words or experts
        own = product.own(q)
        alike = [label for label in own if size[label] == size[keys]]
        queries = alike[0] if len(alike) == 1 else own[-1]
        if any(places[label] == product.out.index(queries) for label in found.first if label in found.second):
            return None  # values of each query's own are no values
        outer = [*product.shared, *(label for label in own if label != queries)]
        order = tuple(map(product.out.index, (*outer, queries, keys)))
        batch, heads = _batch_and_heads(product, [size[label] for label in outer])
        over = product.axis(weights.softmax.scores.axes, weights.softmax.axis)
        shape = batch, heads, size[queries], size[keys]
        return cls(product, q, k, order, shape, _wrong(over, order, size[keys]), places)

    @property
    def keys_are_left(self) -> bool:
        """Whether the keys are the left factor."""
        return self.k is self.product.left

    def four(self, tensor: Tensor, moved: Tensor) -> Tensor:
        """Return a tensor that broadcasts to scores whose axes moved, as `[B, H, Q, K]`."""
        own = self.product.axes
        if moved.shape == own.shape and moved.stride() == own.stride() and self.order == (0, 1, 2, 3):
            return tensor[(None,) * (4 - tensor.ndim)]
        return self.with_heads(self.product.undone(tensor, moved).permute(self.order))

    def with_heads(self, tensor: Tensor) -> Tensor:
        """Return `[B, H, …]` of a tensor with the axes of batch and heads, of which it may lack some, and two more."""
        batch, heads, *_ = self.shape
        *outer, rows, columns = tensor.shape
        if len(outer) == 2:
            return tensor
        if all(size == 1 for size in outer) and (batch * heads > 1 or len(outer) != 1):
            return tensor.reshape(1, 1, rows, columns)
        if len(outer) == 1:
            return tensor.reshape(batch, -1, rows, columns)
        sizes = [self.product.axes.shape[axis] for axis in self.order[1 : len(outer)]]
        return tensor.expand(outer[0], *sizes, rows, columns).flatten(1, -3)


def _batch_and_heads(product: Product, outer: list[int]) -> tuple[int, int]:
    """Return how many batch rows and heads there are; heads may be folded into the batch."""
    if len(outer) != 1:
        return (outer[0], math.prod(outer[1:])) if outer else (1, 1)
    heads = max(product.left.factor.heads, product.right.factor.heads)
    return (outer[0] // heads, heads) if outer[0] % heads == 0 else (outer[0], 1)


def _wrong(over: int | None, order: tuple[int, ...], keys: int) -> str | None:
    """Return what a softmax is over, if it is not the keys; what is not known is right."""
    if over is None or over == order[-1] or (over < 0 and keys == 1):
        return None
    if over < 0:
        return "an axis of one position"
    place = order.index(over)
    return "the queries" if place == len(order) - 2 else "the heads" if place else "the batch"


class Points:
    """An attention at its three points, tensors as `[B, H, …]`; None are those that were changed since.

    Attributes:
        axes: of it.
        origin: where the weights come from.
        changes: of scores and weights.
        q: queries.
        k: keys.
        v: values.
        scores: what the softmax received.
        weights: what it gave.
        met: the weights as they met the values.
        output: weights·V.
    """

    def __init__(self, axes: Axes, weights: Weights, found: Contraction, result: Tensor) -> None:
        self.axes, self.origin, self.changes = axes, weights, weights.scores.changes
        product = axes.product
        labels = [product.out[i] for i in axes.order]
        width = [label for label in product.left.labels if label in product.right.labels and label not in product.out]
        self.q = self._factor(axes.q, [*labels[:-1], *width], len(width))
        self.k = self._factor(axes.k, [*product.shared, labels[-1], *width], len(width))
        self.v, self.output = self._values(found, result)
        self.met = axes.four(found.left.detach(), weights.scores.axes)
        self.scores, self.weights = self._held(weights.softmax.received), self._held(weights.softmax.given)
        if self.weights is None and self.scores is not None and axes.wrong is None:
            self.weights = _softmax(self.scores, -1)  # as it was before it was changed in place

    def tensor(self, change: Change) -> Tensor | None:
        """Return what a change was done with, if it is a tensor, as `[B, H, Q, K]`."""
        tensor = change.tensor
        found = None if tensor is None else self.axes.four(tensor, change.axes)
        return found if found is None or tensor is None or found.stride() == tensor.stride() else compact(found)

    def _factor(self, side: Operand, labels: list[object], widths: int) -> Tensor | None:
        tensor = side.in_order(labels)
        return None if tensor is None else self.axes.with_heads(tensor.flatten(-widths))

    def _held(self, held: Held) -> Tensor | None:
        return None if held.tensor is None else self.axes.four(held.tensor, self.origin.softmax.scores.axes)

    def _values(self, found: Contraction, result: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the values and the output."""
        batch, heads, queries, keys = self.axes.shape
        (summed,) = found.summed
        width = [label for label in found.out if label not in found.first]
        if not width:
            return None, None
        rest = [label for label in found.first if label != summed]
        values = in_order(found.right.detach(), found.second, [*(x for x in rest if x in found.second), summed, *width])
        values = values.flatten(-len(width))
        places = [self.axes.places[label] for label in rest]
        if all(place is not None and place >= 0 for place in places):
            rest.sort(key=lambda label: self.axes.order.index(self.axes.places[label] or 0))
        output = in_order(result.detach(), found.out, [*rest, *width]).flatten(-len(width))
        is_whole = output.numel() == batch * heads * queries * output.shape[-1]
        return (
            self.axes.with_heads(values) if values.shape[-2] == keys else None,
            output.reshape(batch, heads, queries, -1) if is_whole else None,
        )


def compact(values: Tensor) -> Tensor:
    """Return values with one entry along each axis along which they are all equal."""
    for axis, length in enumerate(values.shape):
        first = values.narrow(axis, 0, 1)
        if length > 1 and (values.stride(axis) == 0 or bool((values == first).all())):
            values = first
    return values
