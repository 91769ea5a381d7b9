"""Functions of torch that multiply two tensors and sum: which axis of one is which of the other."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from torch import Tensor

Labels = tuple[object, ...]


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


PRODUCTS = ("matmul", "bmm", "mm", "mv", "__matmul__", "einsum", "baddbmm", "addmm")


def contraction(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Contraction | None:
    """Return what one of the functions of `PRODUCTS` multiplied; None where it is no product of two tensors."""
    if name == "einsum":
        return _einsum(args)
    tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
    added = None
    if name in ("baddbmm", "addmm"):
        if len(tensors) < 3:
            return None
        added = tensors[0], float(kwargs.get("beta", 1)), float(kwargs.get("alpha", 1))
        tensors = tensors[1:]
    if len(tensors) < 2:
        return None
    left, right = tensors[:2]
    batch = [*range(max(left.ndim, right.ndim) - 2, 0, -1)]
    first = (*batch[len(batch) - left.ndim + 2 :], "left", "sum") if left.ndim > 1 else ("sum",)
    second = (*batch[len(batch) - right.ndim + 2 :], "sum", "right") if right.ndim > 1 else ("sum",)
    out = (*batch, *("left",)[: left.ndim - 1], *("right",)[: right.ndim - 1])
    return Contraction(left, right, first, second, out, added)


def _einsum(args: tuple[Any, ...]) -> Contraction | None:
    if not args or not isinstance(args[0], str):
        return None
    tensors = args[1:]
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        tensors = tuple(tensors[0])
    factors, arrow, out = args[0].replace(" ", "").partition("->")
    parts = factors.split(",")
    if len(parts) != 2 or len(tensors) != 2:
        return None
    one, two = (_named(part, tensor.ndim) for part, tensor in zip(parts, tensors, strict=True))
    dots = max((label for label in (*one, *two) if isinstance(label, int)), default=-1) + 1
    if arrow:
        result = _named(out, len(out.replace("...", "")) + dots if "..." in out else len(out))
    else:
        once = sorted(each for each in "".join(parts) if each != "." and "".join(parts).count(each) == 1)
        result = (*range(dots - 1, -1, -1), *once)
    if any(len({*each}) < len(each) for each in (one, two, result)):
        return None
    return Contraction(*tensors, one, two, result)


def _named(part: str, axes: int) -> Labels:
    """Return the letters; the axes of an ellipsis are numbered from its right."""
    dots = axes - len(part.replace("...", ""))
    found: list[object] = []
    for each in re.findall(r"\.\.\.|.", part):
        found.extend(range(dots - 1, -1, -1) if each == "..." else [each])
    return tuple(found)
