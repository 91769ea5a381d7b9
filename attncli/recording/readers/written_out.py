"""The call of an attention that a program writes out.

Values are read in the first calls of each kind at a place, then ever more seldom; see `scores`. In between it is known
from them which tensors are the masks, and what these hide is read in every call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attncli.attention import FORBIDDEN_BELOW
from attncli.masks.findings import Finding
from attncli.recording.call import AttentionCall, MaskArgument
from attncli.recording.lineage import Lineage, operation
from attncli.recording.projections import swapped
from attncli.recording.readers.contraction import Contraction
from attncli.recording.readers.heads import SPLIT
from attncli.recording.readers.origins import Factor, Move, Operand, Product, Scores, Weights, in_order
from attncli.recording.readers.reader import ThreadContext
from attncli.recording.readers.scores import HIDES_NOTHING, Mask, Points, Reading, read

# Also where the program puts a function of its own in its place, which is not to be called by us.
_softmax = torch._C._VariableFunctions.softmax

_MOST_KINDS = 1024  # of calls that are known


class WrittenOut:
    """The attention of a thread that is written out."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[int, Reading]] = {}

    def call(
        self,
        context: ThreadContext,
        weights: Weights,
        found: Contraction,
        result: Tensor,
        values: Factor,
        is_beside: bool = False,
    ) -> AttentionCall | None:
        """Return the attention of weights that met another tensor; None where this is none.

        Args:
            context: the thread.
            weights: where they come from.
            found: the product; its left factor is the weights, if these are not beside others.
            result: of it.
            values: what is known of the other tensor.
            is_beside: whether the weights are beside others that they were added to.
        """
        axes = _Axes.of(weights, found)
        if axes is None:
            return None
        parts = _Parts(axes, weights, found, result, is_beside)
        place, is_training = context.place(), context.is_training()
        changes = weights.scores.changes if weights.scores is not None else ()
        key = (
            place, axes.kind, result.dtype, weights.is_second, weights.axis, weights.before, weights.dropout,
            weights.in_dropout, is_training, is_beside,
            *((change.name, change.is_first, change.ndim) for change in changes),
        )  # fmt: skip
        count, reading = self._known.get(key, (0, None))
        if reading is None or count & (count - 1) == 0 or parts.hide_now(reading.masks):
            with torch.autocast(result.device.type, enabled=False):
                reading = read(parts.points(weights, is_training))
        if len(self._known) >= _MOST_KINDS:
            self._known.clear()
        self._known[key] = count + 1, reading
        findings = [
            *reading.findings,
            *(SPLIT for each in (axes.q.factor, axes.k.factor, values) if each.is_split and not is_beside),
            *parts.swapped(context),
        ]
        applied, ignored = parts.masks(reading.masks)
        hides_nothing = all(each in HIDES_NOTHING for each in reading.unread)
        q, k, v = parts.q, parts.k, parts.v
        return AttentionCall(
            api="softmax",
            place=place,
            shape=axes.shape,
            dtype=str(axes.q.dtype).removeprefix("torch."),
            device=str(axes.q.device),
            q=None if q is None else q.expand(axes.shape[0], axes.shape[1], -1, -1),
            k=None if k is None else k.expand(axes.shape[0], -1, -1, -1),
            v=None if v is None else v.expand(axes.shape[0], -1, -1, -1),
            masks=applied,
            ignored_masks=ignored,
            scale=reading.scale,
            softcap=reading.softcap,
            sinks=reading.sinks,
            dropout=weights.dropout,
            is_training=is_training,
            scores=parts.scores,
            weights=parts.met if reading.is_normalised_again else parts.weights,
            output=parts.output,
            findings=tuple(dict.fromkeys(findings)),
            unsupported=" and ".join(reading.unread) or None,
            is_mask_read=hides_nothing,
            lineage=Lineage.of(axes.q.operation, axes.k.operation, operation(result)),
        )


class _Axes(NamedTuple):
    """Which axes of a product are queries and keys, and the four axes of the call.

    Attributes:
        scores: where the weights come from.
        product: of queries and keys.
        q: the queries.
        k: the keys.
        order: the axes of the product's result, as batch and heads, queries, keys.
        keys: the place of the keys in the product's result.
        shape: `(B, H, Q, K)`.
        is_right: whether the softmax is over the keys.
        over: what else it is over.
    """

    scores: Scores
    product: Product
    q: Operand
    k: Operand
    order: tuple[int, ...]
    keys: int
    shape: tuple[int, int, int, int]
    is_right: bool
    over: str

    @classmethod
    def of(cls, weights: Weights, found: Contraction) -> _Axes | None:
        """Return the axes of weights that are multiplied; None where these are no weights of queries on keys."""
        scores = weights.scores
        if scores is None or len(found.summed) != 1:
            return None
        product, shape = scores.product, tuple(found.left.shape)
        rows, columns = (product.own(side) for side in (product.left, product.right))
        summed = scores.axis(shape, found.first.index(found.summed[0]))
        if summed is None:
            return None
        sizes = _sizes(scores, shape)
        if sizes is None:
            return None
        by_label = dict(zip(product.out, sizes, strict=True))
        if summed >= 0:
            label = product.out[summed]
        else:
            label = next((each for each in (*columns[-1:], *rows[-1:]) if by_label[each] == 1), None)
        if label not in (*rows, *columns):
            return None
        k, q = (product.right, product.left) if label in columns else (product.left, product.right)
        own = product.own(q)
        if product.own(k) != [label] or k.is_learned or (k.ndim == 2 and q.ndim > 2):
            return None  # rows of a parameter or a table are classes, words or experts
        alike = [each for each in own if by_label[each] == by_label[label]]
        queries = alike[0] if len(alike) == 1 else own[-1]
        asking = found.first.index(found.summed[0])
        if any(scores.axis(shape, i) == product.out.index(queries) for i, each in enumerate(found.first)
               if each in found.second and i != asking and shape[i] > 1):  # fmt: skip
            return None  # values of each query's own are no values
        order = [*product.shared, *(each for each in own if each != queries), queries, label]
        batch, heads = _batch_and_heads(
            product, scores, [by_label[each] for each in order[:-2]], by_label[queries], by_label[label]
        )
        over = weights.axis
        is_over = over is None or over == product.out.index(label) or (over == -1 and by_label[label] == 1)
        at = None if over is None else "an axis of one position" if over < 0 else _named(product.out[over], order)
        places = tuple(product.out.index(each) for each in order)
        four = batch, heads, by_label[queries], by_label[label]
        return cls(scores, product, q, k, places, product.out.index(label), four, is_over, at or "")

    @property
    def kind(self) -> tuple[Any, ...]:
        """What calls of one kind have in common."""
        return self.order, self.is_right, self.q is self.product.left, len(self.scores.moves)

    def four(
        self, tensor: Tensor, moves: tuple[Move, ...] | None = None, shape: Sequence[int] | None = None
    ) -> Tensor | None:
        """Return a tensor with the axes of the scores as `[B, H, Q, K]`; None where that cannot be done.

        Args:
            tensor: it.
            moves: of axes that were before it; None are those of the weights.
            shape: what it was broadcast to then; None where it has this shape itself.
        """
        batch, heads, queries, keys = self.shape
        if shape is not None:
            tensor = tensor[(None,) * (len(shape) - tensor.ndim)]
            if tuple(shape) == (batch, heads, queries, keys) and self.q is self.product.left and tensor.ndim == 4:
                return tensor
            if any(not move.dims for move in moves or ()):
                tensor = tensor.expand(shape)
        tensor = self.scores.undone(tensor, moves)
        if tensor.ndim != len(self.order):
            return None
        return self.outer(tensor.permute(self.order))

    def outer(self, tensor: Tensor) -> Tensor | None:
        """Return `[B, H, …]` of a tensor with the axes of batch and heads, and two more."""
        batch, heads, *_ = self.shape
        *outer, rows, columns = tensor.shape
        if len(outer) == 2:
            return tensor
        if len(outer) < 2:
            if not outer or (outer[0] == 1 and batch * heads > 1):
                return tensor.reshape(1, 1, rows, columns)
            return tensor.reshape(batch, -1, rows, columns) if outer[0] % batch == 0 else None
        if all(size == 1 for size in outer):
            return tensor.reshape(1, 1, rows, columns)
        return (
            tensor.reshape(outer[0], -1, rows, columns)
            if 1 not in outer[1:] or math.prod(outer[1:]) == 1
            else tensor.expand(outer[0], *[self._size(i) for i in range(1, len(outer))], rows, columns).reshape(
                outer[0], -1, rows, columns
            )
        )

    def _size(self, i: int) -> int:
        label = self.product.out[self.order[i]]
        return max(
            side.tensor.shape[side.labels.index(label)]
            for side in (self.product.left, self.product.right)
            if label in side.labels and side.tensor is not None
        )


def _sizes(scores: Scores, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the sizes of the axes of the product's result, for scores of a shape."""
    try:
        found = tuple(scores.undone(torch.empty(shape, device="meta")).shape)
    except RuntimeError:
        return None
    return found if len(found) == len(scores.product.out) else None


def _batch_and_heads(product: Product, scores: Scores, outer: list[int], queries: int, keys: int) -> tuple[int, int]:
    """Return how many batch rows and heads there are; heads may be folded into the batch."""
    if len(outer) >= 2:
        return outer[0], math.prod(outer[1:])
    if not outer:
        return 1, 1
    four = scores.four
    if four is not None and four[2:] in ((queries, keys), (keys, queries)) and four[0] * four[1] == outer[0]:
        return four[0], four[1]
    heads = max(product.left.factor.heads, product.right.factor.heads)
    return (outer[0] // heads, heads) if outer[0] % heads == 0 else (outer[0], 1)


def _named(label: object, order: list[object]) -> str:
    return ["the batch", "the heads", "the queries", "the keys"][
        max(order.index(label) - len(order) + 4, int(order.index(label) > 0))
    ]


class _Parts:
    """The tensors of a call, as `[B, H, …]`, and what their values say."""

    def __init__(self, axes: _Axes, weights: Weights, found: Contraction, result: Tensor, is_beside: bool) -> None:
        self.axes, self._own, self._found, self._is_beside = axes, weights, found, is_beside
        product, shared = axes.product, axes.product.shared
        labels = [product.out[i] for i in axes.order]
        width = [label for label in product.left.labels if label in product.right.labels and label not in product.out]
        self.q = self._factor(axes.q.in_order([*labels[:-1], *width]), len(width))
        self.k = self._factor(axes.k.in_order([*shared, labels[-1], *width]), len(width))
        self.v, self.output = self._values(result)
        self.met = axes.four(found.left.detach()) if not is_beside else None
        self.scores = self._held(weights.received)
        self.weights = self._held(weights.given)
        if weights.received is None:  # written out
            self.weights = self.met
        elif self.weights is None and self.scores is not None and axes.is_right:  # changed in place
            self.weights = _softmax(self.scores, -1)
        self.changes = axes.scores.changes

    def _factor(self, tensor: Tensor | None, widths: int) -> Tensor | None:
        if tensor is None:
            return None
        tensor = tensor if widths == 1 else tensor.flatten(-widths)
        return self.axes.outer(tensor)

    def _held(self, held: Any) -> Tensor | None:
        if held is None or (tensor := held.tensor) is None:
            return None
        return self.axes.four(tensor, held.moves)

    def _values(self, result: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the values and the output."""
        found, (batch, heads, queries, keys) = self._found, self.axes.shape
        (summed,) = found.summed
        width = [label for label in found.out if label not in found.first]
        if not width:
            return None, None
        rest = [label for label in found.first if label != summed]
        shared = [label for label in rest if label in found.second]
        values = in_order(found.right.detach(), found.second, [*shared, summed, *width])
        v = self._outer(values.flatten(-len(width)), keys)
        shape = tuple(found.left.shape)
        places = {label: self.axes.scores.axis(shape, found.first.index(label)) for label in rest}
        if all(place is not None and place >= 0 for place in places.values()):
            rest.sort(key=lambda label: self.axes.order.index(places[label] or 0))
        output = in_order(result.detach(), found.out, [*rest, *width]).flatten(-len(width))
        return v, output.reshape(batch, heads, queries, -1) if output.numel() == batch * heads * queries * output.shape[
            -1
        ] else None

    def _outer(self, values: Tensor, keys: int) -> Tensor | None:
        batch = self.axes.shape[0]
        *outer, own, width = values.shape
        if own != keys:
            return None
        if len(outer) == 2:
            return values
        if len(outer) == 1:
            several = outer[0] % batch == 0 and outer[0] != 1
            return values.reshape(batch, -1, own, width) if several else values[None]
        return values.reshape(1, 1, own, width) if not outer else values.reshape(outer[0], -1, own, width)

    def swapped(self, context: ThreadContext) -> tuple[Finding, ...]:
        """Return that queries and keys have each other's place, where the names of their layers say so."""
        q, k = self.axes.q.tensor, self.axes.k.tensor
        return () if q is None or k is None else swapped(context.projected, context.module(), q, k)

    # --- masks ----------------------------------------------------------------------------------------------

    def masks(self, known: Sequence[Mask]) -> tuple[tuple[MaskArgument, ...], tuple[MaskArgument, ...]]:
        """Return the masks that apply, and those that were meant to, as this call has them."""
        applied: list[MaskArgument] = []
        ignored: list[MaskArgument] = []
        for mask in known:
            argument = self._argument(mask)
            if argument is not None:
                (applied if mask.is_applied else ignored).append(argument)
        return tuple(applied), tuple(ignored)

    def hide_now(self, known: Sequence[Mask]) -> bool:
        """Return whether a mask hides something now that hid nothing when values were looked at."""
        vacuous = [mask for mask in known if mask.is_vacuous and mask.change is not None]
        return any(bool(self._hides(mask).any()) for mask in vacuous)

    def _hides(self, mask: Mask) -> Tensor:
        tensor = self.changes[mask.change or 0].tensor
        assert tensor is not None
        return tensor != 0 if mask.convention == "masked" else tensor == 0

    def _argument(self, mask: Mask) -> MaskArgument | None:
        if mask.change is None:
            hidden = self._hidden() if mask.is_before else self._hidden_late()
            return None if hidden is None else MaskArgument(mask.name, compact(hidden), "masked")
        values, change = self._tensor(mask.change), self.changes[mask.change]
        if values is None:
            return None
        source = change.tensor
        if mask.convention == "additive":
            if not values.is_floating_point():
                values = values.to(torch.float32 if self.weights is None else self.weights.dtype)
            values = values if mask.factor == 1 else values * mask.factor
            return MaskArgument("added", values, "additive", source if mask.factor == 1 else None)
        name = "multiplied" if mask.name == "mul" else mask.name
        values = values if values.dtype == torch.bool else values != 0
        return MaskArgument(name, values, mask.convention, source)

    def _tensor(self, index: int) -> Tensor | None:
        """Return what a change was done with, as `[B, H, Q, K]`."""
        change = self.changes[index]
        tensor = change.tensor
        if tensor is None:
            return None
        found = self.axes.four(tensor, change.moves, change.shape)
        return None if found is None else found if found.stride() == tensor.stride() else compact(found)

    def _hidden_late(self) -> Tensor | None:
        return None if self.met is None else self.met == 0

    def _hidden(self) -> Tensor | None:
        """Return where scores are forbidden by their values alone."""
        scores = self.scores
        if scores is None:
            return None if self.weights is None else self.weights == 0
        return scores <= FORBIDDEN_BELOW

    def points(self, weights: Weights, is_training: bool | None) -> Points:
        """Return what is known of the three points, to be read."""
        axes = self.axes
        is_turned = axes.q is axes.product.right
        return Points(
            self.q, self.k, self.scores, self.weights, self.met, self.changes,
            tuple(self._tensor(i) for i in range(len(self.changes))), weights, axes.product.dtype,
            (axes.q.factor.numbers, axes.k.factor.numbers), None if axes.is_right else axes.over,
            is_turned and axes.over == "the queries", is_training, self.raw_sinks(weights),
        )  # fmt: skip

    def raw_sinks(self, weights: Weights) -> Tensor | None:
        """Return the column beside the scores that the softmax received."""
        held = weights.received
        if held is None or held.tensor is None or len(held.moves) != 1 or not held.moves[0].added:
            return None
        column = held.tensor[..., -1:]
        return self.axes.outer(column.permute(self.axes.order)) if column.ndim == len(self.axes.order) else None


def compact(values: Tensor) -> Tensor:
    """Return values with one entry along each axis along which they are all equal."""
    for axis, length in enumerate(values.shape):
        if length > 1:
            first = values.narrow(axis, 0, 1)
            if values.stride(axis) == 0 or bool((values == first).all()):
                values = first
    return values
