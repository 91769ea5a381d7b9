"""Origins of tensors, as far as these may be attention: products, scores, weights; and the lines that made masks.

Origins are found by the identity of a tensor and end with it. They hold the program's tensors as aliases without a
history. Changes of scores are recorded by name, with the tensor that made them. A tensor without numbers that goes
through the same views shows how the axes of scores move.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from copy import copy
from functools import partial
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor

_MOST_CHANGES = 16  # of scores
MadeMask = str  # the origin of a mask: the line of the program that made it, such as `train.py:40`


class Factor(NamedTuple):
    """Facts of a tensor that may be queries, keys or values."""

    heads: int = 1  # of each row that its batch axis holds
    scale: float = 1.0  # what it was multiplied with; NaN where that is no one number
    head_axes: frozenset[int] = frozenset()  # that are known to be heads, or groups of them


class Held:
    """A tensor of the program as it was at a time, by an alias that has no history."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._version = tensor.detach(), version(tensor)
        self.shape, self.dtype, self.device = tuple(tensor.shape), tensor.dtype, tensor.device
        self.is_learned = is_learned(tensor)

    @property
    def tensor(self) -> Tensor | None:
        """The tensor, unless it was changed in place since."""
        return self._tensor if version(self._tensor) == self._version else None


class Operand(Held):
    """A factor of a product, as it was then, as `[batch …, rows, width]`."""

    def __init__(self, tensor: Tensor, canonical: Tensor, positions: int, factor: Factor) -> None:
        super().__init__(canonical)
        self.ndim, self.positions = tensor.ndim, positions  # axes of the program's tensor; those that the other lacks
        self.heads, self.scale = factor.heads, factor.scale
        self.is_learned, self.base = is_learned(tensor), base_of(tensor)  # of the program's tensor

    def changed(self, change: Callable[[Tensor], Tensor]) -> Operand:
        """Return it with axes in another order."""
        other = copy(self)
        other._tensor = change(self._tensor)
        return other

    def joined(self, other: Operand) -> Operand | None:
        """Return it with the width of another one behind its own; None where either was changed."""
        one, two = self.tensor, other.tensor
        if one is None or two is None:
            return None
        outer = torch.broadcast_shapes(one.shape[:-1], two.shape[:-1])  # type: ignore[no-untyped-call]
        both = self.changed(lambda _: torch.cat([each.expand(*outer, -1) for each in (one, two)], -1))
        both._version, both.scale = 0, self.scale if self.scale == other.scale else math.nan
        return both


class Product(NamedTuple):
    """A product of two tensors, whose result is `[shared …, own …, rows of the left one, rows of the right one]`."""

    left: Operand
    right: Operand
    axes: Tensor  # of the result, without numbers; each axis is known by its stride
    shared: int  # how many axes both factors have
    dtype: torch.dtype
    head_axes: frozenset[int] = frozenset()  # of the result, that are known to be heads

    @property
    def is_of_pairs(self) -> bool:
        """Whether both factors are computed and have more than two axes, as queries and keys; a vocabulary has two."""
        return all(side.ndim > 2 and not side.is_learned for side in (self.left, self.right))

    def axis(self, moved: Tensor, index: int) -> int | None:
        """Return the axis of the result that one of the scores is: −1 for a single position, None for no whole axis."""
        size, stride = moved.shape[index], moved.stride(index)
        own = enumerate(zip(self.axes.shape, self.axes.stride(), strict=True))
        return -1 if size == 1 else next((i for i, each in own if each == (size, stride)), None)

    def undone(self, tensor: Tensor, moved: Tensor, keys: int | None = None) -> Tensor:
        """Return a tensor that broadcasts to scores whose axes moved, with the axes of the result."""
        more = range(moved.ndim, tensor.ndim)
        order = sorted(range(moved.ndim), key=moved.stride().__getitem__, reverse=True)
        own = sorted(range(self.axes.ndim), key=self.axes.stride().__getitem__, reverse=True)
        sizes = [1 if axis == keys else self.axes.shape[axis] for axis in own]
        if keys is None:
            tensor = tensor.expand(moved.shape)
        tensor = tensor.permute(*order, *more).reshape(*sizes, *(tensor.shape[axis] for axis in more))
        return tensor.permute(*map(own.index, range(len(own))), *(axis - moved.ndim + len(own) for axis in more))

    def with_row(self, axis: int, row: int) -> Product:
        """Return it with another axis of the result, which one factor lacks, as the rows of the other."""
        if axis == row:
            return self
        last = self.axes.ndim - 1
        sides = [self.left, self.right]
        own, other = row - last + 1, last - row
        sides[own] = sides[own].changed(lambda tensor: tensor.transpose(axis, -2))
        sides[other] = sides[other].changed(lambda tensor: tensor.narrow(axis, 0, 1))
        heads = frozenset({axis: row, row: axis}.get(each, each) for each in self.head_axes)
        return self._replace(left=sides[0], right=sides[1], axes=self.axes.transpose(axis, row), head_axes=heads)

    def unfolded(self, moved: Iterable[Tensor]) -> Product:
        """Return it with the axes into which views of its scores split the rows of the left factor, `[B, Q·H, K]`."""
        row = self.axes.ndim - 2
        size, stride = self.axes.shape[row], self.axes.stride(row)
        for each in moved:
            steps = zip(each.shape, each.stride(), strict=True)
            parts = [length for length, step in steps if stride <= step < size * stride and 1 < length < size]
            at = next((i for i in range(each.ndim) if (each.shape[i], each.stride(i)) == (size, stride)), 0)
            if at and each.ndim > self.axes.ndim and 1 in (each.shape[at - 1], each.shape[at + 1]):  # of one query
                parts = [size, 1] if each.shape[at + 1] == 1 else [1, size]
            if len(parts) == 2 and math.prod(parts) == size:
                split = partial(Tensor.unflatten, dim=row, sizes=parts)
                left, right = self.left.changed(split), self.right.changed(partial(Tensor.unsqueeze, dim=row))
                return self._replace(left=left, right=right, axes=split(self.axes))
        return self


class Change(NamedTuple):
    """A change of the numbers of scores or weights."""

    name: str  # of the function, without what says that it is in place
    other: Held | float | None  # that it was done with; None where there is none, or several
    is_first: bool  # whether scores or weights are the first argument; of `where`, those that stay
    axes: Tensor  # those of the product, as they were moved by then
    made_at: str | None = None  # the line that made the tensor, if it is a mask

    @property
    def factor(self) -> float | None:
        """The number that scores were multiplied with; None where they were not."""
        other = self.other
        if isinstance(other, Held):
            tensor = other.tensor if math.prod(other.shape) == 1 else None
            other = None if tensor is None else float(tensor)
        if self.name not in ("mul", "div") or other is None:
            return None
        return other if self.name == "mul" or not other else 1 / other

    @property
    def tensor(self) -> Tensor | None:
        """The tensor of several numbers, unless it was changed since."""
        other = self.other
        return other.tensor if isinstance(other, Held) and math.prod(other.shape) > 1 else None


class Scores(NamedTuple):
    """Scores that came of a product, number by number; behind a softmax they are weights."""

    product: Product
    axes: Tensor  # of the product, as they moved since
    changes: tuple[Change, ...] = ()  # of its numbers; of more than a few only some
    joined: Held | None = None  # scores and a last column of logits that take weight and give no value, `[…, K + 1]`
    softmax: SoftmaxCall | None = None
    dropout: float = 0.0  # with which weights are dropped since
    in_dropout: bool | None = None  # whether the module that did was in training mode

    @property
    def scale(self) -> float:
        """The number that it was multiplied with; NaN where other things were done."""
        return math.prod(each.factor or math.nan for each in self.changes)

    @property
    def projected(self) -> Factor:
        """Facts of it where it was multiplied with a matrix, or with one for each head."""
        product, axes = self.product, self.axes
        for side in (product.left, product.right):
            if side.is_learned and side.ndim > 2 and side.shape[-1] > 1:
                places = {i: axis for i in range(axes.ndim) if (axis := product.axis(axes, i)) is not None}
                heads = [i for i, axis in places.items() if 0 <= axis < product.shared and side.shape[axis] > 1]
                return Factor(1, self.scale, frozenset(heads if len(heads) == 1 else ()))
        return Factor(scale=self.scale)

    def changed(
        self, name: str, other: Tensor | float | None = None, is_first: bool = True, made_at: str | None = None
    ) -> Scores:
        """Return it with numbers that changed."""
        if len(self.changes) >= _MOST_CHANGES:
            return self
        held = Held(other) if isinstance(other, Tensor) else other
        return self._replace(changes=(*self.changes, Change(name, held, is_first, self.axes, made_at)))


class Untracked:
    """Scores that are followed no further, or weights, which have a shape."""

    def __init__(self, shape: tuple[int, ...] | None = None) -> None:
        self.shape, self.is_noted = shape, False


class SoftmaxCall:
    """A softmax over an axis of scores."""

    def __init__(self, scores: Scores, axis: int, received: Held, result: Held) -> None:
        self.scores, self.axis, self.received, self.result = scores, axis, received, result
        self.is_used = False  # whether its weights met values
        self.untracked = Untracked(result.shape)  # the origin of its weights where they are not followed


Origin = Factor | MadeMask | Scores | Untracked


class Origins:
    """The origins of the tensors of one thread that exist."""

    def __init__(self) -> None:
        self.by_id: dict[int, tuple[ref[Tensor], Origin]] = {}  # by the identities of tensors

    def get(self, tensor: object) -> Origin | None:
        """Return the origin of a tensor; None where it is not known, and of all else."""
        entry = self.by_id.get(id(tensor))
        return None if entry is None else entry[1]

    def put(self, tensor: Tensor, origin: Origin | None) -> None:
        """Remember the origin of a tensor while it lives."""
        by_id, key = self.by_id, id(tensor)
        if origin is None:
            by_id.pop(key, None)
        else:
            by_id[key] = ref(tensor, lambda _: by_id.pop(key, None)), origin

    def factor(self, tensor: object) -> Factor:
        """Return the facts of a tensor that may be a factor of a product."""
        origin = self.get(tensor)
        if isinstance(origin, Scores) and origin.softmax is None:  # a product with a matrix, as a projection
            return origin.projected
        return origin if isinstance(origin, Factor) else Factor()

    def made_at(self, tensor: object) -> str | None:
        """Return the line that made a mask."""
        origin = self.get(tensor)
        return origin if isinstance(origin, MadeMask) else None


def base_of(tensor: Tensor) -> Tensor | None:
    """Return what a tensor is a view of, without its history."""
    return None if tensor._base is None else tensor._base.detach()


def is_learned(tensor: Tensor) -> bool:
    """Return whether a tensor is a parameter of a module, or a view of one."""
    # Of plain tensors, which most are, asking what a Parameter is takes longer than all else.
    is_one = type(tensor) is not Tensor and isinstance(tensor, torch.nn.Parameter)
    return is_one or ((base := tensor._base) is not None and isinstance(base, torch.nn.Parameter))


def head_axes(tensor: Tensor, width: int) -> frozenset[int]:
    """Return the axes of queries or keys into which a view splits the width of a projection, as into heads."""
    base = tensor._base
    if tensor.ndim < 4 or base is None or base.ndim < 2 or is_learned(base):
        return frozenset()
    row, least = base.stride(-2), tensor.stride(width)
    steps = {i: tensor.stride(i) for i, size in enumerate(tensor.shape) if size > 1 and i != width}
    return frozenset(i for i, step in steps.items() if least < step and step * tensor.shape[i] <= row)


def version(tensor: Tensor) -> int:
    """Return how often a tensor was changed in place; tensors of the inference mode do not count it."""
    return 0 if tensor.is_inference() else tensor._version


def has_values(result: Any) -> bool:
    """Return whether a result is a plain tensor, with numbers of its own."""
    is_plain = type(result) is Tensor and not (result.is_meta or result.is_nested)
    return is_plain and not torch._C._functorch.is_functorch_wrapped_tensor(result)
