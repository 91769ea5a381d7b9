"""What a tensor was computed from, as autograd records it: by the numbers of operations, which keep nothing alive.

Autograd counts the operations of a thread, and what an operation takes has lower numbers than its own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch


class Lineage(NamedTuple):
    """The operations that queries, keys and output of a call are the results of."""

    queries: int
    keys: int
    output: int

    @classmethod
    def of(cls, queries: int | None, keys: int | None, output: int | None) -> Lineage | None:
        """Return it; None where one of them has no operation, as without gradients."""
        return None if queries is None or keys is None or output is None else cls(queries, keys, output)


def operation(tensor: Any) -> int | None:
    """Return the number of the operation that a tensor is the result of; None of one without gradients."""
    node = tensor.grad_fn
    return None if node is None else node._sequence_nr()


def lineage(queries: torch.Tensor, keys: torch.Tensor, output: torch.Tensor) -> Lineage | None:
    """Return the operations of the tensors of a call; None where one of them has none."""
    return Lineage.of(operation(queries), operation(keys), operation(output))


class History:
    """What each position of a tensor was computed from at the same position.

    Operations are followed back that give something for each position; one that gives less, such as a mean, mixes them.
    An attention mixes them too: of what it takes, its queries alone stand where its output does.

    Args:
        tensor: it.
        since: the first operation, which gave something for each position.
        batch: how many rows there are.
        length: how many positions a row has; also the first or last of them may be left out.
        calls: attention that may have taken part.
    """

    def __init__(self, tensor: torch.Tensor, since: int, batch: int, length: int, calls: Iterable[Lineage]) -> None:
        self._outputs = {each.output: each.queries for each in calls}
        self._since = since
        self._before = dict(_operations(tensor, since, (length, length - 1), batch))
        self._last = operation(tensor)
        self._reached = cache(self._reached_from)

    def has_self_attention(self, call: Lineage) -> bool:
        """Return whether a call took part, whose queries and keys come from the same positions of the first operation.

        They also come from the same calls before, as those of a decoder that looks at an encoder's output do not.
        """
        if self._last is None or call.output not in self._reached(self._last):
            return False
        queries, keys = self._reached(call.queries), self._reached(call.keys)
        return self._since in queries & keys and not (queries ^ keys) & self._outputs.keys()

    def _reached_from(self, number: int) -> frozenset[int]:
        reached: set[int] = set()
        left = [number]
        while left:
            number = left.pop()
            if number in reached or number not in self._before:
                continue
            reached.add(number)
            left += [self._outputs[number]] if number in self._outputs else self._before[number]
        return frozenset(reached)


def _operations(
    tensor: torch.Tensor, since: int, lengths: Collection[int], batch: int
) -> Iterator[tuple[int, list[int]]]:
    """Yield the operations of a tensor that give something for each position, with those before them."""
    left: list[Any] = [tensor.grad_fn]
    seen = set()
    while left:
        node = left.pop()
        number = node._sequence_nr()
        if number in seen or number < since or hasattr(node, "variable"):  # a parameter's
            continue
        seen.add(number)
        shapes = [made.shape for made in node._input_metadata if not made.is_nested_tensor]
        if any(_has_positions(shape, batch, length) for shape in shapes for length in lengths):
            before = [each for each, _ in node.next_functions if each is not None]
            yield number, [each._sequence_nr() for each in before]
            left += before


def _has_positions(shape: Sequence[int], batch: int, length: int) -> bool:
    """Return whether a tensor may have vectors of each position: in an axis of their own, or one with the batch."""
    if math.prod(shape) <= batch * length:
        return False  # one number each, or the vector of a whole row, which may be as long
    return length in shape or shape[0] % (batch * length) == 0
