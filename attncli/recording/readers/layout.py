"""The axes of an attention that is written out: which are queries and keys, and its tensors as `[B, H, …]`."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attncli.recording.readers.contraction import Contraction
from attncli.recording.readers.origins import Change, Held, Move, Operand, Product, Scores, Weights, in_order

# Also where the program puts a function of its own in its place, which is not to be called by us.
_softmax = torch._C._VariableFunctions.softmax


class Axes(NamedTuple):
    """Which axes of a product are queries and keys, and the four axes of the call.

    Attributes:
        scores: where the weights come from.
        product: of queries and keys.
        q: the queries.
        k: the keys.
        order: the axes of the product's result, as batch and heads, queries, keys.
        outer: the sizes of those that are batch and heads.
        shape: `(B, H, Q, K)`.
        wrong: what the softmax is over, if it is not the keys.
    """

    scores: Scores
    product: Product
    q: Operand
    k: Operand
    order: tuple[int, ...]
    outer: tuple[int, ...]
    shape: tuple[int, int, int, int]
    wrong: str | None

    @classmethod
    def of(cls, weights: Weights, found: Contraction) -> Axes | None:
        """Return the axes of weights, the left factor of a product; None of what is no weights of queries on keys."""
        scores = weights.scores
        if scores is None or len(found.summed) != 1:
            return None
        product, shape = scores.product, tuple(found.left.shape)
        sizes = _sizes(scores, shape)
        axes = {label: scores.axis(shape, index) for index, label in enumerate(found.first)}
        summed = axes[found.summed[0]]
        if sizes is None or summed is None:
            return None
        size = dict(zip(product.out, sizes, strict=True))
        rows, columns = product.own(product.left), product.own(product.right)
        several = (product.out[summed],) if summed >= 0 else (*columns, *rows)
        keys = next(
            (label for label in several if label in (*rows, *columns) and (summed >= 0 or size[label] == 1)), None
        )
        k, q = (product.right, product.left) if keys in columns else (product.left, product.right)
        if product.own(k) != [keys] or k.is_learned or (k.ndim == 2 and q.ndim > 2):
            return None  # rows of a parameter or a table are classes, words or experts
        own = product.own(q)
        alike = [label for label in own if size[label] == size[keys]]
        queries = alike[0] if len(alike) == 1 else own[-1]
        if any(axes[label] == product.out.index(queries) for label in found.first if label in found.second):
            return None  # values of each query's own are no values
        names = [*product.shared, *(label for label in own if label != queries), queries, keys]
        order = tuple(map(product.out.index, names))
        outer = tuple(size[label] for label in names[:-2])
        four = *_batch_and_heads(scores, outer, (size[queries], size[keys])), size[queries], size[keys]
        return cls(scores, product, q, k, order, outer, four, _wrong(weights.axis, order, size[keys]))

    @property
    def keys_are_left(self) -> bool:
        """Whether the keys are the left factor."""
        return self.k is self.product.left

    def four(
        self, tensor: Tensor, moves: tuple[Move, ...] | None = None, shape: tuple[int, ...] | None = None
    ) -> Tensor | None:
        """Return a tensor with the axes of the scores as `[B, H, Q, K]`; None where that cannot be done.

        Args:
            tensor: it.
            moves: of axes that were before it; None are those of the weights.
            shape: what it was broadcast to then; None where it has this shape itself.
        """
        if shape is not None:
            tensor = tensor[(None,) * (len(shape) - tensor.ndim)]
            if shape == self.shape and not self.keys_are_left and tensor.ndim == 4:
                return tensor
            if any(not move.dims for move in moves or ()):
                tensor = tensor.expand(shape)
        tensor = self.scores.undone(tensor, moves)
        return None if tensor.ndim != len(self.order) else self.with_heads(tensor.permute(self.order))

    def with_heads(self, tensor: Tensor) -> Tensor | None:
        """Return `[B, H, …]` of a tensor with the axes of batch and heads, of which it may lack some, and two more."""
        batch, heads, *_ = self.shape
        *outer, rows, columns = tensor.shape
        if len(outer) == 2:
            return tensor
        if all(size == 1 for size in outer) and (batch * heads > 1 or len(outer) != 1):
            return tensor.reshape(1, 1, rows, columns)
        if len(outer) == 1:
            return tensor.reshape(batch, -1, rows, columns) if outer[0] % batch == 0 else None
        return tensor.expand(outer[0], *self.outer[1 : len(outer)], rows, columns).flatten(1, -3)


def _sizes(scores: Scores, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the sizes of the axes of the product's result, for scores of a shape."""
    try:
        found = tuple(scores.undone(torch.empty(shape, device="meta")).shape)
    except RuntimeError:
        return None
    return found if len(found) == len(scores.product.out) else None


def _batch_and_heads(scores: Scores, outer: tuple[int, ...], cells: tuple[int, int]) -> tuple[int, int]:
    """Return how many batch rows and heads there are; heads may be folded into the batch."""
    if len(outer) != 1:
        return (outer[0], math.prod(outer[1:])) if outer else (1, 1)
    four = scores.four
    if four is not None and four[2:] in (cells, cells[::-1]) and four[0] * four[1] == outer[0]:
        return four[0], four[1]
    heads = max(scores.product.left.factor.heads, scores.product.right.factor.heads)
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
        q: queries.
        k: keys.
        v: values.
        scores: what the softmax received; None where it is written out.
        weights: what it gave.
        met: the weights as they met the values; None where they were added to others.
        output: weights·V.
        changes: of scores and weights.
        tensors: what they were done with.
    """

    def __init__(self, axes: Axes, weights: Weights, found: Contraction, result: Tensor, is_beside: bool) -> None:
        self.axes, self.origin = axes, weights
        product = axes.product
        labels = [product.out[i] for i in axes.order]
        width = [label for label in product.left.labels if label in product.right.labels and label not in product.out]
        self.q = self._factor(axes.q, [*labels[:-1], *width], len(width))
        self.k = self._factor(axes.k, [*product.shared, labels[-1], *width], len(width))
        self.v, self.output = self._values(found, result)
        self.met = None if is_beside else axes.four(found.left.detach())
        self.scores, self.weights = self._held(weights.received), self._held(weights.given)
        if weights.received is None:  # written out
            self.weights = self.met
        elif self.weights is None and self.scores is not None and axes.wrong is None:
            self.weights = _softmax(self.scores, -1)  # as it was before it was changed in place
        self.changes = axes.scores.changes

    @property
    def tensors(self) -> list[Tensor | None]:
        """What scores and weights were changed with."""
        return [self.tensor(change) for change in self.changes]

    def tensor(self, change: Change) -> Tensor | None:
        """Return what a change was done with, if it is a tensor, as `[B, H, Q, K]`."""
        tensor = change.tensor
        found = None if tensor is None else self.axes.four(tensor, change.moves, change.shape)
        return found if found is None or tensor is None or found.stride() == tensor.stride() else compact(found)

    @property
    def sinks(self) -> Tensor | None:
        """The column beside the scores that the softmax received."""
        held = self.origin.received
        if held is None or held.tensor is None or len(held.moves) != 1 or not held.moves[0].added:
            return None
        return self.axes.with_heads(held.tensor[..., -1:].permute(self.axes.order))

    def _factor(self, side: Operand, labels: list[object], widths: int) -> Tensor | None:
        tensor = side.in_order(labels)
        return None if tensor is None else self.axes.with_heads(tensor.flatten(-widths))

    def _held(self, held: Held | None) -> Tensor | None:
        return None if held is None or held.tensor is None else self.axes.four(held.tensor, held.moves)

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
        shape = tuple(found.left.shape)
        places = {label: self.axes.scores.axis(shape, found.first.index(label)) for label in rest}
        if all(place is not None and place >= 0 for place in places.values()):
            rest.sort(key=lambda label: self.axes.order.index(places[label] or 0))
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
