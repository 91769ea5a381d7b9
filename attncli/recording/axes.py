"""What the axes of a tensor mean, through every view that a program makes of it.

An axis is a run of atoms, the slowest first: heads folded into the batch are one axis of two atoms, and what is folded
can so be undone. A view that divides an atom says so in the atom itself, for all tensors that have it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch


class Atom:
    """A run of positions that no view has divided: an axis, or a factor of one.

    Attributes:
        size: how many.
        parts: what a view divided it into, the slowest first.
        inner: the axis that other columns were put beside, and where in this it begins; None without.
    """

    __slots__ = ("inner", "parts", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.parts: tuple[Atom, ...] = ()
        self.inner: tuple[Axis, int] | None = None

    def divided(self, sizes: Sequence[int]) -> tuple[Atom, ...] | None:
        """Return its parts of these sizes; None where it was divided otherwise before."""
        if not self.parts:
            self.parts = tuple(Atom(size) for size in sizes)
        return self.parts if [part.size for part in self.parts] == list(sizes) else None


Axis = tuple[Atom, ...]  # none is an axis of size 1
Layout = tuple[Axis, ...]


def leaves(axis: Iterable[Atom]) -> Axis:
    """Return the atoms of an axis as far as they are divided."""
    found: list[Atom] = []
    for atom in axis:
        found.extend(leaves(atom.parts) if atom.parts else (atom,))
    return tuple(found)


def size(axis: Iterable[Atom]) -> int:
    """Return how many positions an axis has."""
    return math.prod(atom.size for atom in axis)


def long(axes: Iterable[Axis]) -> frozenset[Atom]:
    """Return the atoms of axes, without those of one position, which no view holds on to."""
    return frozenset(leaf for axis in axes for leaf in leaves(axis) if leaf.size != 1)


def fresh(shape: Sequence[int]) -> Layout:
    """Return the layout of a tensor of which nothing is known."""
    return tuple((Atom(each),) for each in shape)


def broadcast(layout: Layout, shape: Sequence[int]) -> Layout:
    """Return the layout of a tensor after it was broadcast: an axis that grew is one of its own."""
    added = len(shape) - len(layout)
    grown = tuple((Atom(new),) if size(axis) != new else axis for axis, new in zip(layout, shape[added:], strict=True))
    return (*fresh(shape[:added]), *grown)


def beside(layout: Layout, shape: Sequence[int]) -> Layout | None:
    """Return the layout of a tensor that broadcasts to one that has this layout; None where it does not."""
    if len(shape) > len(layout):
        return None
    axes = layout[len(layout) - len(shape) :]
    if any(each not in (1, size(axis)) for each, axis in zip(shape, axes, strict=True)):
        return None
    return tuple(axis if each != 1 else () for each, axis in zip(shape, axes, strict=True))


def reshaped(layout: Layout, old: Sequence[int], new: Sequence[int]) -> Layout | None:
    """Return the layout of a tensor after `view` or `reshape`; None where an axis cannot be followed."""
    axes: list[Axis] = []
    i = j = 0
    while i < len(old) and j < len(new):
        begin, first, had, has = i, j, old[i], new[j]
        i, j = i + 1, j + 1
        while had != has:
            if had < has and i < len(old):
                had, i = had * old[i], i + 1
            elif has < had and j < len(new):
                has, j = has * new[j], j + 1
            else:
                return None
        if i - begin == 1 and j - first == 1:
            axes.append(layout[begin])
            continue
        dealt = _dealt([atom for axis in layout[begin:i] for atom in leaves(axis) if atom.size != 1], new[first:j])
        if dealt is None:
            return None
        axes.extend(dealt)
    return (*axes, *(() for _ in new[j:]))


def _dealt(atoms: list[Atom], sizes: Sequence[int]) -> list[Axis] | None:
    """Return atoms dealt to axes of these sizes, divided where they need to be."""
    axes: list[Axis] = []
    for wanted in sizes:
        axis: list[Atom] = []
        while (left := wanted // size(axis)) != 1:
            if not atoms:
                return None
            atom = atoms.pop(0)
            if left % atom.size == 0:
                axis.append(atom)
                continue
            parts = atom.divided((left, atom.size // left)) if atom.size % left == 0 else None
            if parts is None:
                return None
            atoms[:0] = leaves(parts)
        if size(axis) != wanted:
            return None
        axes.append(tuple(axis))
    return axes


def arranged(
    tensor: torch.Tensor, layout: Layout, groups: Sequence[Axis], is_grouped: bool = False
) -> torch.Tensor | None:
    """Return a tensor with one axis for each group of atoms, in their order; None where it has others too.

    Atoms that the tensor does not have are axes of 1: it broadcasts. It is a view wherever its strides allow one.

    Args:
        tensor: its axes are those of the layout.
        layout: whose atoms may have been divided since.
        groups: of atoms that are not divided.
        is_grouped: whether a group may lack its last atoms, as keys that several heads share do.
    """
    axes = [leaves(axis) for axis in layout]
    if [size(axis) for axis in axes] != list(tensor.shape):
        return None
    order = _order(axes, groups)
    if order is not None:
        return tensor if order == [*range(len(axes))] else tensor.permute(order)
    have = [leaf for axis in axes for leaf in axis]
    if len(set(have)) < len(have) or len(have) > 20:
        return None
    tensor = tensor.reshape([leaf.size for leaf in have])
    wanted = [leaf for group in groups for leaf in group]
    rest = [leaf for leaf in have if leaf not in wanted]
    if any(leaf.size != 1 for leaf in rest):
        return None
    kept = [leaf for leaf in wanted if leaf in have]
    tensor = tensor.permute([have.index(leaf) for leaf in (*kept, *rest)])
    whole = [[leaf.size if leaf in kept else 1 for leaf in group] for group in groups]
    tensor = tensor.reshape([each for sizes in whole for each in sizes])
    full = [_expanded(group, kept, is_grouped) for group in groups]
    tensor = tensor.expand([each for sizes in full for each in sizes])
    return tensor.reshape([math.prod(sizes) for sizes in full])


def _order(axes: list[Axis], groups: Sequence[Axis]) -> list[int] | None:
    """Return the order of axes that is that of the groups, where no axis has to be made, divided or merged."""
    if len(axes) != len(groups):
        return None
    there = {leaf for axis in axes for leaf in axis}
    units = (i for i, axis in enumerate(axes) if not axis)
    order = []
    for group in groups:
        at = axes.index(group) if group and group in axes else None if there.intersection(group) else next(units, None)
        if at is None:
            return None
        order.append(at)
    return order


def _expanded(group: Axis, have: list[Atom], is_grouped: bool) -> list[int]:
    """Return the sizes of a group's atoms, of which those that are not there are filled in where some are there."""
    there = [leaf in have for leaf in group]
    stays = not any(there) or (is_grouped and there == sorted(there, reverse=True))
    return [leaf.size if is_there or not stays else 1 for leaf, is_there in zip(group, there, strict=True)]
