"""The axes of an attention that is written out: which are queries and keys, and its tensors as `[B, H, …]`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attncli.recording.readers.contraction import Contraction
from attncli.recording.readers.origins import Change, Held, Operand, Product, Weights, in_order

# Also where the program puts a function of its own in its place, which is not to be called by us.
_softmax = torch._C._VariableFunctions.softmax


class Points:
    """An attention at its three points, tensors as `[B, H, …]`; None are those that were changed since.

    Attributes:
        origin: where the weights come from.
        changes: of scores and weights.
        product: of queries and keys.
        q_side: its factor that is the queries.
        k_side: its factor that is the keys.
        order: the axes of the product's result, as batch and heads, queries, keys.
        shape: `(B, H, Q, K)`.
        wrong: what the softmax is over, if it is not the keys.
        q: queries.
        k: keys.
        v: values.
        scores: what the softmax received.
        weights: what it gave.
        met: the weights as they met the values.
        output: weights·V.
    """

    @classmethod
    def of(cls, weights: Weights, found: Contraction, result: Tensor) -> Points | None:
        """Return the points of weights, the left factor of a product; None of what is no weights of queries on keys."""
        scores, product = weights.scores, weights.scores.product
        if len(found.summed) != 1 or scores.axes.shape != found.left.shape:
            return None
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
        order = [*product.shared, *(label for label in own if label != queries), queries, keys]
        return cls(weights, (q, k), order, places, found, result)

    def __init__(
        self,
        weights: Weights,
        sides: tuple[Operand, Operand],
        labels: list[object],
        places: dict[object, int | None],
        found: Contraction,
        result: Tensor,
    ) -> None:
        self.origin, self.changes, self.product = weights, weights.scores.changes, weights.scores.product
        self.q_side, self.k_side = sides
        product, softmax = self.product, weights.softmax
        self.order = tuple(map(product.out.index, labels))
        *outer, queries, keys = (product.axes.shape[axis] for axis in self.order)
        self.shape = *_batch_and_heads(product, outer), queries, keys
        self.wrong = _wrong(product.axis(softmax.scores.axes, softmax.axis), self.order, keys)
        width = {*product.left.labels} - {*product.out}
        self.q = self._factor(self.q_side, [*labels[:-1], *width])
        self.k = self._factor(self.k_side, [*product.shared, labels[-1], *width])
        self.v, self.output = self._values(found, result, places)
        self.met = self.four(found.left.detach(), weights.scores.axes)
        self.scores, self.weights = self._held(softmax.received), self._held(softmax.result)
        if self.weights is None and self.scores is not None and self.wrong is None:
            self.weights = _softmax(self.scores, -1)  # as it was before it was changed in place

    @property
    def keys_are_left(self) -> bool:
        """Whether the keys are the left factor."""
        return self.k_side is self.product.left

    def tensor(self, change: Change) -> Tensor | None:
        """Return what a change was done with, if it is a tensor, as `[B, H, Q, K]`."""
        tensor = change.tensor
        found = None if tensor is None else self.four(tensor, change.axes)
        return found if found is None or tensor is None or found.stride() == tensor.stride() else compact(found)

    def four(self, tensor: Tensor, moved: Tensor) -> Tensor:
        """Return a tensor that broadcasts to scores whose axes moved, as `[B, H, Q, K]`."""
        own = self.product.axes
        if moved.shape == own.shape and moved.stride() == own.stride() and self.order == (0, 1, 2, 3):
            return tensor[(None,) * (4 - tensor.ndim)]
        return self._with_heads(self.product.undone(tensor, moved).permute(self.order))

    def _with_heads(self, tensor: Tensor) -> Tensor:
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

    def _factor(self, side: Operand, labels: list[object]) -> Tensor | None:
        tensor = side.tensor
        return None if tensor is None else self._with_heads(in_order(tensor, side.labels, labels))

    def _held(self, held: Held) -> Tensor | None:
        return None if held.tensor is None else self.four(held.tensor, self.origin.softmax.scores.axes)

    def _values(
        self, found: Contraction, result: Tensor, places: dict[object, int | None]
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the values and the output."""
        batch, heads, queries, keys = self.shape
        (summed,) = found.summed
        width = [label for label in found.out if label not in found.first]
        if not width:
            return None, None
        rest = [label for label in found.first if label != summed]
        values = in_order(found.right.detach(), found.second, [*(x for x in rest if x in found.second), summed, *width])
        values = values.flatten(-len(width))
        if all((place := places[label]) is not None and place >= 0 for label in rest):
            rest.sort(key=lambda label: self.order.index(places[label] or 0))
        output = in_order(result.detach(), found.out, [*rest, *width]).flatten(-len(width))
        is_whole = output.numel() == batch * heads * queries * output.shape[-1]
        return (
            self._with_heads(values) if values.shape[-2] == keys else None,
            output.reshape(batch, heads, queries, -1) if is_whole else None,
        )


def _batch_and_heads(product: Product, outer: list[int]) -> tuple[int, int]:
    """Return how many batch rows and heads there are; heads may be folded into the batch."""
    if len(outer) != 1:
        return (outer[0], math.prod(outer[1:])) if outer else (1, 1)
    heads = max(product.left.heads, product.right.heads)
    return (outer[0] // heads, heads) if outer[0] % heads == 0 else (outer[0], 1)


def _wrong(over: int | None, order: tuple[int, ...], keys: int) -> str | None:
    """Return what a softmax is over, if it is not the keys; what is not known is right."""
    if over is None or over == order[-1] or (over < 0 and keys == 1):
        return None
    if over < 0:
        return "an axis of one position"
    place = order.index(over)
    return "the queries" if place == len(order) - 2 else "the heads" if place else "the batch"


def compact(values: Tensor) -> Tensor:
    """Return values with one entry along each axis along which they are all equal."""
    for axis, length in enumerate(values.shape):
        first = values.narrow(axis, 0, 1)
        if length > 1 and (values.stride(axis) == 0 or bool((values == first).all())):
            values = first
    return values
