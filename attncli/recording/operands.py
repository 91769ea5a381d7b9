"""Two tensors that are multiplied and summed: which axis of one is which of the other, and which are summed over."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from attncli.recording.axes import Atom, Axis, Layout, fresh, leaves, size
from attncli.recording.lineage import operation
from attncli.recording.provenance import Flow, Node, Operand, steps_of, version

# What names a factor's axes: the letters of an einsum, or words for where matmul has them.
Labels = Sequence[object]


class Factor(NamedTuple):
    """A tensor that is multiplied, with what is known of it.

    Attributes:
        tensor: the program's.
        layout: what its axes are.
        flow: where it came from.
        is_weights: whether it came from a softmax.
    """

    tensor: torch.Tensor
    layout: Layout
    flow: Flow | None = None
    is_weights: bool = False

    @classmethod
    def of(cls, tensor: torch.Tensor, node: Node | None) -> Factor:
        """Return a tensor with what its node says; nothing, where that is too long ago."""
        if node is None or (node.state.flow is None and not node.state.was_told):
            return cls(tensor, fresh(tensor.shape))
        flow = node.state.flow
        return cls(tensor, node.layout, flow, flow is None or flow.stage == "weights")

    def operand(self, labels: Labels, axes: Mapping[object, Axis]) -> Operand:
        """Return it as it is kept for a call, with the axes that a product gave it."""
        layout = tuple(
            axes[label] if each == size(axes[label]) else ()
            for label, each in zip(labels, self.tensor.shape, strict=True)
        )
        return self.kept()._replace(layout=layout)

    def kept(self) -> Operand:
        """Return it as it is kept for a call: by an alias that has no history."""
        steps, is_own = steps_of(self.flow), is_learned(self.tensor)
        number, is_split = operation(self.tensor), self.flow is not None and self.flow.is_split
        return Operand(self.tensor.detach(), self.layout, steps, is_own, version(self.tensor), number, is_split)


def is_learned(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a parameter of a module, or a view of one."""
    # Of plain tensors, which most are, asking what a Parameter is takes longer than all else.
    is_one = type(tensor) is not torch.Tensor and isinstance(tensor, torch.nn.Parameter)
    return is_one or ((base := tensor._base) is not None and isinstance(base, torch.nn.Parameter))


def letters(equation: str, first: int, second: int) -> tuple[Labels, Labels, Labels] | None:
    """Return the names of the axes of both factors of an einsum and of its result; None where one is named twice.

    Args:
        equation: as `torch.einsum` takes it.
        first: how many axes the first factor has.
        second: how many the second has.
    """
    factors, arrow, out = equation.replace(" ", "").partition("->")
    parts = factors.split(",")
    if len(parts) != 2:
        return None
    one, two = (_named(part, axes) for part, axes in zip(parts, (first, second), strict=True))
    dots = max((label for label in (*one, *two) if isinstance(label, int)), default=-1) + 1
    if arrow:
        result = _named(out, len(out.replace("...", "")) + dots if "..." in out else len(out))
    else:
        once = sorted(each for each in "".join(parts) if each != "." and "".join(parts).count(each) == 1)
        result = [*range(dots - 1, -1, -1), *once]
    return None if any(len({*each}) < len(each) for each in (one, two, result)) else (one, two, result)


def _named(part: str, axes: int) -> list[object]:
    """Return the letters; the axes of an ellipsis are numbered from its right."""
    dots = axes - len(part.replace("...", ""))
    found: list[object] = []
    for each in re.findall(r"\.\.\.|.", part):
        found.extend(range(dots - 1, -1, -1) if each == "..." else [each])
    return found


def joined(left: Factor, right: Factor, first: Labels, second: Labels) -> dict[object, Axis]:
    """Return the axis that each name stands for; what only one of the factors says of how an axis is made is kept."""
    axes: dict[object, Axis] = {}
    for factor, labels in ((left, first), (right, second)):
        for label, each, axis in zip(labels, factor.tensor.shape, factor.layout, strict=True):
            known = axes.get(label)
            if known is None or (size(known) == 1 and each != 1):
                axes[label] = axis
            elif size(known) == each and len(known := leaves(known)) == 1 < len(finer := leaves(axis)):
                known[0].divided([leaf.size for leaf in finer])
    asking = {leaf for label in first if label not in second for leaf in leaves(axes[label])}
    for label in second:
        if label not in first and not asking.isdisjoint(leaves(axes[label])):
            axes[label] = (Atom(size(axes[label])),)  # keys of the very tokens of the queries are counted on their own
    return axes


def own(first: Labels, second: Labels, axes: Mapping[object, Axis]) -> tuple[Axis, Axis]:
    """Return the axes that the left and the right factor have alone."""
    alone = ([label for label in first if label not in second], [label for label in second if label not in first])
    return _atoms(alone[0], axes), _atoms(alone[1], axes)


def own_of_broadcast(left: Factor, right: Factor, labels: Labels, axes: Mapping[object, Axis]) -> tuple[Axis, Axis]:
    """Return the axes that the left and the right factor have alone, where the other has an axis of 1 in its place."""
    sizes = list(zip(labels, left.tensor.shape, right.tensor.shape, strict=True))
    return (
        _atoms([label for label, one, two in sizes if two == 1 != one], axes),
        _atoms([label for label, one, two in sizes if one == 1 != two], axes),
    )


def _atoms(labels: Labels, axes: Mapping[object, Axis]) -> tuple[Atom, ...]:
    return tuple(atom for label in labels for atom in axes[label])
