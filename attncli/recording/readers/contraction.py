"""Functions of torch that multiply two tensors and sum: which axis of one is which of the other."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from torch import Tensor

Labels = tuple[object, ...]

PRODUCTS = ("matmul", "bmm", "mm", "__matmul__", "einsum", "baddbmm")


class Contraction(NamedTuple):
    """Two tensors that were multiplied and summed, with labels of their axes and of the result's.

    Attributes:
        left: the first.
        right: the second.
        first: the labels of `left`.
        second: the labels of `right`.
        out: the labels of the result.
        added: what the product was added to, and the factors of both (`baddbmm`); None without.
    """

    left: Tensor
    right: Tensor
    first: Labels
    second: Labels
    out: Labels
    added: tuple[Tensor, float, float] | None = None

    def turned(self) -> Contraction:
        """Return the same with the second tensor first."""
        return self._replace(left=self.right, right=self.left, first=self.second, second=self.first)

    @property
    def summed(self) -> list[object]:
        """The labels that are summed over."""
        return [label for label in self.first if label in self.second and label not in self.out]


def contraction(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Contraction | None:
    """Return what one of `PRODUCTS` multiplied; None where it is no product of two tensors of several axes."""
    if name == "einsum":
        return _einsum(*args)
    tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
    added = None
    if name == "baddbmm":
        added = tensors.pop(0), float(kwargs.get("beta", 1)), float(kwargs.get("alpha", 1))
    if len(tensors) != 2 or any(each.ndim < 2 for each in tensors):
        return None
    left, right = tensors
    batch = [*range(max(left.ndim, right.ndim) - 2, 0, -1)]
    first = (*batch[len(batch) - left.ndim + 2 :], "left", "sum")
    second = (*batch[len(batch) - right.ndim + 2 :], "sum", "right")
    return Contraction(left, right, first, second, (*batch, "left", "right"), added)


def _einsum(equation: Any, *tensors: Any) -> Contraction | None:
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        tensors = tuple(tensors[0])
    if not isinstance(equation, str) or "->" not in equation or len(tensors) != 2:
        return None
    factors, _, out = equation.replace(" ", "").partition("->")
    one, two = (_labels(part, tensor.ndim) for part, tensor in zip(factors.split(","), tensors, strict=True))
    dots = max((label for label in (*one, *two) if isinstance(label, int)), default=-1) + 1
    result = _labels(out, len(out.replace("...", "")) + dots)
    if any(len({*each}) < len(each) for each in (one, two, result)):
        return None
    return Contraction(*tensors, one, two, result)


def _labels(part: str, axes: int) -> Labels:
    """Return the letters; the axes of an ellipsis are numbered from its right."""
    dots = axes - len(part.replace("...", ""))
    found: list[object] = []
    for each in re.findall(r"\.\.\.|.", part):
        found.extend(range(dots - 1, -1, -1) if each == "..." else [each])
    return tuple(found)
