"""What an index takes of a tensor that is followed: a part of an axis is the same part of all that has this axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from attncli.recording.axes import Atom, Axis, Layout, leaves, long, size
from attncli.recording.provenance import Flow, Laid, Operand, Product, Softmax

_MOST_INNER = 8  # axes within one another that a part can be one of


class Part(NamedTuple):
    """A part of an axis.

    Attributes:
        axis: of which.
        start: the first position.
        taken: what the axis is afterwards; no atoms where one position was taken, and the axis went.
    """

    axis: Axis
    start: int
    taken: Axis


def indexed(layout: Layout, index: Sequence[Any]) -> tuple[Layout, tuple[Part, ...]] | None:
    """Return the layout of what an index takes, and the axes of which it takes a part; None of other indices."""
    axes: list[Axis] = []
    parts: list[Part] = []
    rest = list(layout)
    dots = len(layout) - sum(each is not None and each is not Ellipsis for each in index)
    for each in index:
        if each is None:
            axes.append(())
        elif each is Ellipsis:
            axes.extend(rest[:dots])
            del rest[:dots]
        elif isinstance(each, slice) and rest:
            axis = rest.pop(0)
            start, stop, step = each.indices(size(axis))
            if step != 1 or stop <= start:
                return None
            axes.append(axis if stop - start == size(axis) else _within(axis, start, stop - start))
            if axes[-1] is not axis:
                parts.append(Part(leaves(axis), start, axes[-1]))
        elif isinstance(each, int) and not isinstance(each, bool) and rest:
            axis = rest.pop(0)
            parts.append(Part(leaves(axis), each % size(axis), ()))
        else:
            return None
    return (*axes, *rest), tuple(parts)


def extended(axis: Axis, start: int, whole: int) -> Axis:
    """Return an axis that has another in it, from a position on."""
    atom, within, depth = Atom(whole), axis, 0
    while len(within) == 1 and within[0].inner is not None:
        within, depth = within[0].inner[0], depth + 1
    atom.inner = (axis, start) if depth < _MOST_INNER else None
    return (atom,)


def _within(axis: Axis, start: int, length: int) -> Axis:
    if len(axis) == 1 and axis[0].inner is not None:
        inner, begin = axis[0].inner
        if (begin, size(inner)) == (start, length):
            return inner
    return (Atom(length),)


def taken(flow: Flow, part: Part) -> Flow | None:
    """Return the flow of a part of scores or weights; None where not all that they came from has this axis alone."""
    try:
        return _taken(flow, part)
    except _NotAloneError:
        return None


class _NotAloneError(Exception):
    """An axis is one with another, of which no part can be taken."""


def _taken(flow: Flow, part: Part) -> Flow:
    product, softmax = flow.product, flow.softmax
    if product is not None:
        left, right = (_operand(each, part) for each in (product.left, product.right))
        product = Product(left, right, product.summed, (_own(product.own[0], part), _own(product.own[1], part)))
    if softmax is not None:
        softmax = _softmax(softmax, part)
    laid, after = (tuple(_laid(each, part) for each in some) for some in (flow.laid, flow.after))
    sinks = None if flow.sinks is None else _laid(flow.sinks, part)
    return flow._replace(product=product, softmax=softmax, laid=laid, after=after, sinks=sinks, four=None)


def _operand(operand: Operand, part: Part) -> Operand:
    tensor, layout = _of(operand.tensor, operand.layout, part)
    return operand._replace(tensor=tensor, layout=layout)


def _own(axis: Axis, part: Part) -> Axis:
    atoms = leaves(axis)
    return (*(atom for atom in atoms if atom not in part.axis), *part.taken) if {*part.axis} & {*atoms} else atoms


def _laid(laid: Laid, part: Part) -> Laid:
    if laid.values is None:
        if laid.layout:
            raise _NotAloneError
        return laid
    values, layout = _of(laid.values, laid.layout, part)
    return laid._replace(values=values, layout=layout)


def _softmax(softmax: Softmax, part: Part) -> Softmax:
    weights, layout = _of(softmax.weights, softmax.layout, part)
    scores = softmax.scores
    if scores is not None:
        scores, _ = _of(scores, softmax.layout, part)
    over = softmax.over
    if over & {*part.axis}:
        over = (over - {*part.axis}) | long((part.taken,))
    new = Softmax(over, layout, scores, weights, softmax.is_second)
    new.versions = softmax.versions
    return new


def _of(tensor: torch.Tensor, layout: Layout, part: Part) -> tuple[torch.Tensor, Layout]:
    """Return the part of a tensor; one that is the same along the axis is so along its part."""
    axes = list(layout)
    for i, axis in enumerate(layout):
        if (atoms := leaves(axis)) == part.axis:
            tensor, axes[i] = tensor.narrow(i, part.start, size(part.taken)), part.taken
        elif {*atoms} & {*part.axis}:
            raise _NotAloneError
    return tensor, tuple(axes)
