"""Where tensors come from, as far as it may be attention: products, scores, weights; and the lines that made masks.

Origins are found by the identity of a tensor and end with it. What they hold of the program's tensors are aliases
without a history. What is done to scores is recorded by name, with the tensor it was done with. How their axes move is
followed by a tensor without numbers that goes through the same views.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from copy import copy
from functools import partial
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor

from attncli.recording.call import CallSite
from attncli.recording.slices import BaseLayout

_MOST_PRODUCTS = 64  # whose factors are held at a time
_MOST_CHANGES = 16  # of scores


class Factor(NamedTuple):
    """What is known of a tensor that may be queries, keys or values."""

    heads: int = 1  # of each row that its batch axis holds
    scale: float = 1.0  # what it was multiplied with; NaN where that is no one number
    head_axes: frozenset[int] = frozenset()  # that are known to be heads, or groups of them
    width: int | None = None  # of its heads before each was multiplied with a weight of its own, as MLA absorbs one


class AttentionOutput(NamedTuple):
    """The output of an attention, `[…, T, D]`, and where it was computed."""

    place: CallSite


class MadeMask(NamedTuple):
    """A mask, and the line of the program that made it, such as `train.py:40`."""

    line: str


class Held:
    """A tensor of the program as it was at a time, by an alias that has no history."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor: Tensor | None = tensor.detach()
        self._version = version(tensor)
        self.shape, self.dtype, self.device = tuple(tensor.shape), tensor.dtype, tensor.device

    @property
    def tensor(self) -> Tensor | None:
        """The tensor, unless it was changed in place or let go since."""
        tensor = self._tensor
        return None if tensor is None or version(tensor) != self._version else tensor

    def let_go(self) -> None:
        """Hold the tensor no longer."""
        self._tensor = None


class Operand(Held):
    """A factor of a product, as it was then, as `[batch …, rows, width]`."""

    def __init__(self, tensor: Tensor, canonical: Tensor, positions: int, factor: Factor) -> None:
        super().__init__(canonical)
        self.ndim, self.positions = tensor.ndim, positions  # axes of the program's tensor, and of the result its own
        self.heads, self.scale = factor.heads, factor.scale
        self.width = canonical.shape[-1] if factor.width is None else factor.width  # of heads, before one was absorbed
        self.is_split, self.is_learned = splits_positions(tensor), is_learned(tensor)
        self.base = BaseLayout.of(tensor)

    def changed(self, change: Callable[[Tensor], Tensor]) -> Operand:
        """Return it with axes in another order."""
        own = copy(self)
        own._tensor = None if self._tensor is None else change(self._tensor)
        return own

    def joined(self, other: Operand) -> Operand | None:
        """Return it with the width of another one behind its own; None where either was changed or let go."""
        one, two = self.tensor, other.tensor
        if one is None or two is None:
            return None
        outer = torch.broadcast_shapes(one.shape[:-1], two.shape[:-1])  # type: ignore[no-untyped-call]
        both = copy(self)
        both._tensor = torch.cat([each.expand(*outer, -1) for each in (one, two)], -1)
        both._version = version(both._tensor)
        both.width, both.scale = self.width + other.width, self.scale if self.scale == other.scale else math.nan
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
        """Whether it is of pairs of what two computed tensors hold, such as queries and keys.

        A tensor of two axes is one for the whole batch, such as the words that a model chooses of.
        """
        return all(side.ndim > 2 and not side.is_learned for side in (self.left, self.right))

    def axis(self, moved: Tensor, index: int) -> int | None:
        """Return which axis of the result an axis of the scores is.

        Args:
            moved: `axes` as they moved with the scores.
            index: of the axis.

        Returns:
            The axis, −1 for one of a single position, None for one that is part of another, or several of them.
        """
        size, stride = moved.shape[index], moved.stride(index)
        if size == 1:
            return -1
        own = zip(self.axes.shape, self.axes.stride(), strict=True)
        return next((i for i, each in enumerate(own) if each == (size, stride)), None)

    def undone(self, tensor: Tensor, moved: Tensor, keys: int | None = None) -> Tensor:
        """Return a tensor that broadcasts to scores whose axes moved, with the axes of the result.

        Args:
            tensor: with the axes of scores; it may have more behind these.
            moved: `axes` as they moved with the scores.
            keys: an axis of the result of which the tensor has one entry, as the output has of that of the keys.
        """
        more = range(moved.ndim, tensor.ndim)
        order = sorted(range(moved.ndim), key=moved.stride().__getitem__, reverse=True)
        own = sorted(range(self.axes.ndim), key=self.axes.stride().__getitem__, reverse=True)
        sizes = [1 if axis == keys else self.axes.shape[axis] for axis in own]
        if keys is None:
            tensor = tensor.expand(moved.shape)
        tensor = tensor.permute(*order, *more).reshape(*sizes, *(tensor.shape[axis] for axis in more))
        return tensor.permute(*map(own.index, range(len(own))), *(axis - moved.ndim + len(own) for axis in more))

    def with_row(self, axis: int, row: int) -> Product:
        """Return it with another axis of the result in the place of the rows of a factor.

        Args:
            axis: that takes the place; of the other factor it has one entry.
            row: the place, one of the last two.
        """
        if axis == row:
            return self
        last = self.axes.ndim - 1
        sides = [self.left, self.right]
        own, other = row - last + 1, last - row
        sides[own] = sides[own].changed(lambda tensor: tensor.transpose(axis, -2))
        sides[other] = sides[other].changed(lambda tensor: tensor.narrow(axis, 0, 1))
        turned = {axis: row, row: axis}
        heads = frozenset(turned.get(each, each) for each in self.head_axes)
        return self._replace(
            left=sides[0], right=sides[1], axes=self.axes.transpose(axis, row), head_axes=heads
        )  # fmt: skip

    def unfolded(self, moved: Iterable[Tensor]) -> Product:
        """Return it with the axes into which views of its scores split the rows of the left factor, as `[B, Q·H, K]`.

        Args:
            moved: `axes` as they moved.
        """
        row = self.axes.ndim - 2
        size, stride = self.axes.shape[row], self.axes.stride(row)
        for each in moved:
            steps = zip(each.shape, each.stride(), strict=True)
            parts = [length for length, step in steps if stride <= step < size * stride and 1 < length < size]
            at = next((i for i in range(each.ndim) if (each.shape[i], each.stride(i)) == (size, stride)), 0)
            if at and each.ndim > self.axes.ndim and 1 in (each.shape[at - 1], each.shape[at + 1]):  # of one query
                parts = [size, 1] if each.shape[at + 1] == 1 else [1, size]
            if len(parts) == 2 and math.prod(parts) == size:
                left = self.left.changed(partial(_unflattened, parts=parts))
                right = self.right.changed(lambda tensor: tensor.unsqueeze(row))
                return self._replace(left=left, right=right, axes=_unflattened(self.axes, parts))
        return self


def _unflattened(tensor: Tensor, parts: list[int]) -> Tensor:
    """Return `[…, rows, width]` with the rows in several axes."""
    return tensor.reshape(*tensor.shape[:-2], *parts, tensor.shape[-1])


class Change(NamedTuple):
    """What was done to the numbers of scores or weights."""

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


class Sinks(NamedTuple):
    """One more logit of each query beside its scores, which takes weight and gives no value."""

    joined: Held  # scores and logits, `[…, K + 1]`, before anything was done to both
    first: int  # key of `joined` that the scores begin with: 0, or 1 where the logit is first

    def scores(self, tensor: Tensor) -> Tensor:
        """Return the cells of keys, of a tensor as wide as `joined`."""
        return tensor[..., self.first : self.first + tensor.shape[-1] - 1]

    @property
    def logits(self) -> Tensor | None:
        """The logits `[…, 1]`, unless they were changed in place since."""
        tensor = self.joined.tensor
        return None if tensor is None else tensor[..., :1] if self.first else tensor[..., -1:]


class Scores(NamedTuple):
    """What came of a product, number by number."""

    product: Product
    axes: Tensor  # of the product, as they moved since
    changes: tuple[Change, ...] = ()  # of its numbers; of more than a few only some
    sinks: Sinks | None = None

    @property
    def projected(self) -> Factor:
        """What is known of it where it was multiplied with a matrix, or with one for each head."""
        product, axes = self.product, self.axes
        scale = math.prod(each.factor or math.nan for each in self.changes)
        for side, other in ((product.left, product.right), (product.right, product.left)):
            if other.is_learned and other.ndim > 2 and other.shape[-1] > 1:
                heads = (product.axis(axes, index) for index in range(axes.ndim))
                found = [i for i, own in enumerate(heads) if own is not None and 0 <= own < product.shared]
                found = [i for i in found if other.shape[product.axis(axes, i) or 0] > 1]
                if len(found) == 1:
                    return Factor(1, scale, frozenset(found), side.shape[-1])
        return Factor(scale=scale)

    @property
    def is_raised(self) -> bool:
        """Whether an exponential was taken of it, as where a softmax is written out."""
        return any(change.name in ("exp", "exp2") for change in self.changes)

    def changed(
        self, name: str, other: Tensor | float | None = None, is_first: bool = True, made_at: str | None = None
    ) -> Scores:
        """Return it with numbers that changed."""
        if len(self.changes) >= _MOST_CHANGES:
            return self
        held = Held(other) if isinstance(other, Tensor) else other
        return self._replace(changes=(*self.changes, Change(name, held, is_first, self.axes, made_at)))


class Lost:
    """What came of queries and keys in ways that are not followed: scores, or weights, which have a shape."""

    def __init__(self, shape: tuple[int, ...] | None = None) -> None:
        self.shape, self.is_counted = shape, False


class SoftmaxCall:
    """A softmax over an axis of scores."""

    def __init__(self, scores: Scores, axis: int, received: Held, result: Held) -> None:
        self.scores, self.axis, self.received, self.result = scores, axis, received, result
        self.is_used = False  # whether its weights met values
        self.lost = Lost(result.shape)  # what they are where they are not followed


class Weights(NamedTuple):
    """What a softmax made of scores, or what was made of that since."""

    softmax: SoftmaxCall
    scores: Scores  # that it took, with what became of them since
    dropout: float = 0.0  # with which weights are dropped since
    in_dropout: bool | None = None  # whether the module that did was in training mode


Origin = Factor | AttentionOutput | MadeMask | Scores | Weights | Lost


class Origins:
    """The origins of the tensors of one thread that exist.

    Attributes:
        is_over: whether nothing is followed any more.
        by_id: the origins by the identities of tensors.
        windows: how many windows of one picture follow one another in a batch of so many rows.
    """

    def __init__(self) -> None:
        self.is_over = False
        self.by_id: dict[int, tuple[ref[Tensor], Origin]] = {}
        self.windows: dict[int, int] = {}
        self._operands: deque[ref[Operand]] = deque()

    def get(self, tensor: object) -> Origin | None:
        """Return the origin of a tensor; None where it is not known, and of all else."""
        entry = self.by_id.get(id(tensor))
        return None if entry is None else entry[1]

    def put(self, tensor: Tensor, origin: Origin | None) -> None:
        """Remember the origin of a tensor while it lives."""
        by_id, key = self.by_id, id(tensor)
        if origin is None or self.is_over:
            by_id.pop(key, None)
        else:
            by_id[key] = ref(tensor, lambda _: by_id.pop(key, None)), origin

    def begin(self, product: Product, axes: Tensor) -> Scores:
        """Return the scores of a product, whose axes moved; of the oldest of many, the factors are let go."""
        # They are held by what came of the product alone, which ends with the tensors of the program.
        self._operands += ref(product.left), ref(product.right)
        while len(self._operands) > 2 * _MOST_PRODUCTS:
            if (oldest := self._operands.popleft()()) is not None:
                oldest.let_go()
        return Scores(product, axes)

    def end(self) -> None:
        """Follow nothing any more, and let go of what is held."""
        self.is_over = True
        self.by_id.clear()
        self._operands.clear()

    def factor(self, tensor: object) -> Factor:
        """Return what is known of a tensor that may be a factor of a product."""
        origin = self.get(tensor)
        if isinstance(origin, Scores):  # a product with a matrix, as a projection
            return origin.projected
        return origin if isinstance(origin, Factor) else Factor()

    def made_at(self, tensor: object) -> str | None:
        """Return the line that made a mask."""
        origin = self.get(tensor)
        return origin.line if isinstance(origin, MadeMask) else None


def is_learned(tensor: Tensor) -> bool:
    """Return whether a tensor is a parameter of a module, or a view of one."""
    # Of plain tensors, which most are, asking what a Parameter is takes longer than all else.
    is_one = type(tensor) is not Tensor and isinstance(tensor, torch.nn.Parameter)
    return is_one or ((base := tensor._base) is not None and isinstance(base, torch.nn.Parameter))


def splits_positions(tensor: Tensor) -> bool:
    """Return whether a view alone makes `[B, H, T, D]` of `[B, T, H·D]`, so that a head is a part of the positions."""
    base = tensor._base
    if base is None or tensor.ndim != 4 or isinstance(base, torch.nn.Parameter):
        return False
    _, heads, positions, width = tensor.shape
    is_of_heads = heads > 1 and base.shape[-1] == heads * width
    return is_of_heads and 1 < positions != heads and tensor.is_contiguous()


def head_axes(tensor: Tensor, width: int) -> frozenset[int]:
    """Return the axes of queries or keys into which a view splits the width of a projection, as into heads.

    Args:
        tensor: of more than three axes.
        width: the axis that products sum over.
    """
    base = tensor._base
    if tensor.ndim < 4 or base is None or base.ndim < 2 or is_learned(base) or splits_positions(tensor):
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
