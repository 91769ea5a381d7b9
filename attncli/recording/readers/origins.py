"""Where tensors come from, as far as it may be attention: factors, scores, weights, outputs.

Origins are found by the identity of a tensor and end with it. What they hold of the program's tensors are aliases
without a history. What is done to numbers is recorded by name, with the tensor it was done with, and is not
interpreted; only how axes move is followed, so that scores can be laid out as the product made them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor

from attncli.recording.call import CallSite
from attncli.recording.lineage import operation

# A tensor of one element is read when a call is emitted, as reading it waits for the device.
Number = float | Tensor
UNKNOWN: Number = math.nan  # among the numbers of a tensor: it was also multiplied with what is no one constant

_MOST_PRODUCTS = 64  # whose factors are held at a time
_MOST_CHANGES = 16  # of scores, or numbers of a factor


class Factor(NamedTuple):
    """A tensor that may become queries, keys or values.

    Attributes:
        numbers: those that it was multiplied with.
        heads: how many of them are folded into its batch.
        is_split: whether a view alone made heads of it; see `heads`.
    """

    numbers: tuple[Number, ...] = ()
    heads: int = 1
    is_split: bool = False


class AttentionOutput(NamedTuple):
    """The output of an attention."""

    place: CallSite


class Operand:
    """A factor of a product, as it was then.

    Attributes:
        tensor: an alias of the program's; None once it was changed in place, or many products were computed since.
        labels: of its axes.
        factor: what is known of it.
        is_learned: whether it is a parameter of a module, or a view of one.
        operation: that it is the result of, as autograd counts them.
    """

    def __init__(self, tensor: Tensor, labels: tuple[object, ...], factor: Factor) -> None:
        self._tensor: Tensor | None = tensor.detach()
        self._version = version(tensor)
        self.labels, self.factor, self.is_learned = labels, factor, is_learned(tensor)
        self.operation = operation(tensor)
        self.ndim, self.dtype, self.device = tensor.ndim, tensor.dtype, tensor.device

    @property
    def tensor(self) -> Tensor | None:
        """The tensor, unless it is another one by now."""
        tensor = self._tensor
        return None if tensor is None or version(tensor) != self._version else tensor

    def let_go(self) -> None:
        """Hold the tensor no longer."""
        self._tensor = None

    def in_order(self, labels: Iterable[object]) -> Tensor | None:
        """Return the tensor with axes in this order; those that it does not have are 1."""
        return None if (tensor := self.tensor) is None else in_order(tensor, self.labels, labels)


class Product(NamedTuple):
    """A product of two tensors, whose axes are called by labels.

    Attributes:
        left: a factor.
        right: the other one.
        out: the labels of the result.
        dtype: of the result.
    """

    left: Operand
    right: Operand
    out: tuple[object, ...]
    dtype: torch.dtype

    def own(self, side: Operand) -> list[object]:
        """Return the labels that the result has of one factor alone."""
        other = self.right if side is self.left else self.left
        return [label for label in self.out if label in side.labels and label not in other.labels]

    @property
    def shared(self) -> list[object]:
        """The labels that both factors have, and the result."""
        return [label for label in self.out if label in self.left.labels and label in self.right.labels]

    @property
    def is_of_pairs(self) -> bool:
        """Whether it is of pairs of what two computed tensors hold, such as queries and keys.

        A tensor of two axes is one for the whole batch, such as the words that a model chooses of.
        """
        return all(side.ndim > 2 and not side.is_learned and self.own(side) for side in (self.left, self.right))


class Move(NamedTuple):
    """How axes moved: other sizes, another order, or more positions in the last of them."""

    before: tuple[int, ...]
    dims: tuple[int, ...] = ()  # that undo another order
    added: int = 0


class Change(NamedTuple):
    """What was done to the numbers of scores or weights.

    Attributes:
        name: of the function, without what says that it is in place.
        other: the tensor or the number that it was done with; None where there is none, or several.
        is_first: whether scores or weights are the first argument.
        moves: of axes that were before it.
        shape: of the scores then.
        version: of the tensor then.
    """

    name: str
    other: Tensor | Number | None
    is_first: bool
    moves: tuple[Move, ...]
    shape: tuple[int, ...]
    version: int = 0

    @property
    def factor(self) -> float | None:
        """The number that scores were multiplied with; None where they were not."""
        other = self.other
        if self.name not in ("mul", "div") or other is None or (isinstance(other, Tensor) and other.numel() > 1):
            return None
        number = float(other)
        return number if self.name == "mul" or not number else 1 / number

    @property
    def ndim(self) -> int | None:
        """How many axes the tensor has; None where there is none."""
        return self.other.ndim if isinstance(self.other, Tensor) else None

    @property
    def tensor(self) -> Tensor | None:
        """The tensor of several numbers, unless it was changed since."""
        other = self.other
        return other if isinstance(other, Tensor) and other.numel() > 1 and version(other) == self.version else None


class Scores(NamedTuple):
    """What came of a product, number by number.

    Attributes:
        product: where it came from.
        moves: of its axes since.
        changes: of its numbers since; of more than a few it is only known that there were some.
        four: the first four axes that it had since, if it had four.
    """

    product: Product
    moves: tuple[Move, ...] = ()
    changes: tuple[Change, ...] = ()
    four: tuple[int, ...] | None = None

    @property
    def is_raised(self) -> bool:
        """Whether an exponential was taken of it, as where a softmax is written out."""
        return any(change.name == "exp" for change in self.changes)

    def moved(self, move: Move, after: tuple[int, ...]) -> Scores:
        """Return it with axes that moved."""
        four = after if self.four is None and len(after) == 4 and not move.dims and not move.added else self.four
        return self._replace(moves=(*self.moves, move), four=four)

    def changed(self, change: Change) -> Scores:
        """Return it with numbers that changed."""
        changes = self.changes if len(self.changes) >= _MOST_CHANGES else (*self.changes, change)
        return self._replace(changes=changes)

    def undone(self, tensor: Tensor, moves: tuple[Move, ...] | None = None) -> Tensor:
        """Return a tensor that has the axes of these scores, or has them after other moves, as the product's result.

        Raises:
            RuntimeError: a tensor of no numbers would have to be copied.
        """
        for move in reversed(self.moves if moves is None else moves):
            if move.dims:
                tensor = tensor.permute(move.dims)
            elif move.added:
                tensor = tensor.narrow(-1, 0, tensor.shape[-1] - move.added) if tensor.shape[-1] > 1 else tensor
            else:
                tensor = tensor.view(move.before) if tensor.is_meta else tensor.reshape(move.before)
        return tensor

    def axis(self, shape: tuple[int, ...], axis: int) -> int | None:
        """Return which axis of the product's result an axis of the scores is, by what their strides say.

        Args:
            shape: of the scores.
            axis: of theirs.

        Returns:
            The axis, −1 for one of a single position, None for one that is part of another.
        """
        if shape[axis] == 1:
            return -1
        probe = torch.empty(shape, device="meta")
        try:
            found = self.undone(probe)
        except RuntimeError:
            return None
        pairs = enumerate(zip(found.shape, found.stride(), strict=True))
        sizes = shape[axis], shape[axis] - sum(move.added for move in self.moves)
        return next((i for i, (size, step) in pairs if step == probe.stride(axis) and size in sizes), None)


class Weights(NamedTuple):
    """What a softmax made of scores, or what was made of that since.

    Attributes:
        scores: where they come from, with the moves and changes since; None of a softmax of what nothing is known of.
        before: how many of the changes were before the softmax.
        received: what the softmax took, and its version and moves; None of one that is written out.
        given: what it gave, likewise.
        axis: that it is over, of the product's result; see `Scores.axis`.
        is_second: whether it took weights.
        dropout: the probability with which weights are dropped since.
        in_dropout: whether the module that did was in training mode.
        others: weights of other softmaxes that were added.
        met: where these weights are known to have met values, or to be lost.
    """

    scores: Scores | None
    before: int = 0
    received: Held | None = None
    given: Held | None = None
    axis: int | None = None
    is_second: bool = False
    dropout: float = 0.0
    in_dropout: bool | None = None
    others: tuple[Weights, ...] = ()
    met: Met | None = None


class Held(NamedTuple):
    """A tensor as it was after some moves of its axes."""

    alias: Tensor
    version: int
    moves: tuple[Move, ...]

    @classmethod
    def of(cls, tensor: Tensor, moves: tuple[Move, ...] = ()) -> Held:
        """Return an alias of the program's tensor, which has no history."""
        return cls(tensor.detach(), version(tensor), moves)

    @property
    def tensor(self) -> Tensor | None:
        """The tensor, unless it was changed since."""
        return self.alias if version(self.alias) == self.version else None


class Met:
    """What became of the weights of a softmax: whether they met values, and where they were lost."""

    def __init__(self) -> None:
        self.has_met = False
        self.lost: CallSite | None = None


class Lost(NamedTuple):
    """What came of queries and keys in ways that are not followed.

    Attributes:
        is_unsummed: whether it holds the product of each query and each key, whose sum over the width is the scores.
    """

    is_unsummed: bool = False


Origin = Factor | AttentionOutput | Scores | Weights | Lost


class Origins:
    """The origins of the tensors of one thread that exist.

    Attributes:
        is_over: whether nothing is followed any more.
        known: the origins by the identities of tensors.
    """

    def __init__(self) -> None:
        self.is_over = False
        self.known: dict[int, tuple[ref[Tensor], Origin]] = {}
        self._products: deque[Product] = deque()

    def get(self, tensor: object) -> Origin | None:
        """Return the origin of a tensor; None where it is not known, and of all else."""
        entry = self.known.get(id(tensor))
        return None if entry is None else entry[1]

    def put(self, tensor: Tensor, origin: Origin | None) -> None:
        """Know the origin of a tensor while it lives."""
        known, key = self.known, id(tensor)
        if origin is None or self.is_over:
            known.pop(key, None)
        else:
            known[key] = ref(tensor, lambda _: known.pop(key, None)), origin

    def begin(self, result: Tensor, product: Product) -> None:
        """Follow a product; of the oldest of many, the factors are let go."""
        self._products.append(product)
        if len(self._products) > _MOST_PRODUCTS:
            oldest = self._products.popleft()
            oldest.left.let_go()
            oldest.right.let_go()
        shape = tuple(result.shape)
        self.put(result, Scores(product, four=shape if len(shape) == 4 else None))

    def end(self) -> None:
        """Follow nothing any more, and let go of what is held."""
        self.is_over = True
        self.known.clear()
        self._products.clear()

    def factor(self, tensor: object) -> Factor:
        """Return what is known of a tensor as a factor."""
        if self.is_over:
            return Factor((UNKNOWN,))
        origin = self.get(tensor)
        if isinstance(origin, Scores):  # queries may be a product themselves
            numbers = [change.factor for change in origin.changes]
            known = tuple(number for number in numbers if number is not None)
            return Factor(known if len(known) == len(numbers) else (UNKNOWN,) * bool(known))
        return origin if isinstance(origin, Factor) else Factor()


def in_order(tensor: Tensor, labels: Iterable[object], order: Iterable[object]) -> Tensor:
    """Return a tensor with axes in the order of their labels; those that it does not have are 1."""
    labels, order = [*labels], [*order]
    tensor = tensor.permute([labels.index(label) for label in order if label in labels])
    for at, label in enumerate(order):
        if label not in labels:
            tensor = tensor.unsqueeze(at)
    return tensor


def is_learned(tensor: Tensor) -> bool:
    """Return whether a tensor is a parameter of a module, or a view of one."""
    # Of plain tensors, which most are, asking what a Parameter is takes longer than all else.
    is_one = type(tensor) is not Tensor and isinstance(tensor, torch.nn.Parameter)
    return is_one or ((base := tensor._base) is not None and isinstance(base, torch.nn.Parameter))


def version(tensor: Tensor) -> int:
    """Return how often a tensor was changed in place; tensors of the inference mode do not count it."""
    return 0 if tensor.is_inference() else tensor._version


def has_values(result: Any) -> bool:
    """Return whether a result is a plain tensor, with numbers of its own."""
    is_plain = type(result) is Tensor and not (result.is_meta or result.is_nested)
    return is_plain and not torch._C._functorch.is_functorch_wrapped_tensor(result)


def several_numbers(*numbers: tuple[Number, ...]) -> tuple[Number, ...]:
    """Return numbers one after another; of many, that they are not known."""
    together = sum(numbers, ())
    return together if len(together) <= _MOST_CHANGES else (UNKNOWN,)
