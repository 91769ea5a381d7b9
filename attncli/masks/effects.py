"""Atoms of a mask expression that have no effect: the same cells are allowed without them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

import numpy as np

from attncli.attention import row_blocks
from attncli.errors import InputError
from attncli.masks.expressions import And, Atom, Expression, Grid, Mask, Not, Or, RuleMask, leaves
from attncli.masks.mask_grid import MaskSize
from attncli.masks.notation import NOTATION

_MOST_ATOMS, _MOST_CELLS = 16, 2**24  # limits of the comparison
_FARTHEST = 1024  # positions beyond the size, over which an atom is tried too
_BACKWARD = {"window", "dilated"}  # they forbid the future too; `causal` next to them makes that clear to a reader


def idle_note(expression: Expression, size: MaskSize) -> str | None:
    """Return a sentence about the atoms that have no effect over a size; None where each atom has one.

    An atom whose effect begins at larger sizes, such as a window longer than the text, has none at this size.
    """
    idle, rest = list[str](), expression
    if len(list(leaves(expression))) > _MOST_ATOMS or (size.queries or 0) * (size.keys or 0) > _MOST_CELLS:
        return None
    while found := next((candidate for candidate in _without_each(rest) if _is_idle(*candidate, rest, size)), None):
        leaf, less = found
        idle, rest = [*idle, str(leaf)], less or rest
    if not idle:
        return None
    larger = _larger(expression, size)
    where = "" if larger is not None and _are_equal(expression, rest, larger) else " at this size"
    *most, last = idle
    names = f"{', '.join(most)} and {last} have" if most else f"{last} has"
    return f"{names} no effect{where}: the expression equals {rest}"


def idle_notes(masks: Iterable[Mask]) -> list[str]:
    """Return a note for each mask of the layers that has atoms without effect, each once."""
    rules = {mask[1:]: mask for mask in masks if isinstance(mask, RuleMask)}
    notes = (idle_note(rule.expression, MaskSize(rule.queries, rule.keys, rule.past)) for rule in rules.values())
    return list(dict.fromkeys(filter(None, notes)))


def _without_each(expression: Expression) -> Iterator[tuple[Expression, Expression | None]]:
    """Yield each atom or file with the expression that lacks it; None where nothing would be left."""
    if isinstance(expression, And | Or):
        for index, side in enumerate(expression.sides):
            for leaf, rest in _without_each(side):
                sides = [*expression.sides]
                sides[index : index + 1] = [] if rest is None else [rest]
                yield leaf, sides[0] if len(sides) == 1 else type(expression)(tuple(sides))
    elif isinstance(expression, Not):
        for leaf, rest in _without_each(expression.inner):
            yield (Not(leaf), None) if rest is None else (leaf, Not(rest))
    else:
        yield expression, None


def _is_idle(leaf: Expression, less: Expression | None, whole: Expression, size: MaskSize) -> bool:
    """Return whether an atom has no effect, and a reader loses nothing without it.

    Not idle: a bias, or `causal` next to an atom that looks back.
    """
    if less is None:
        return False
    names = {atom.name for atom in leaves(less) if isinstance(atom, Atom)}
    is_meant = leaf == Atom("causal") and not names.isdisjoint(_BACKWARD)
    is_bias = isinstance(leaf, Atom) and NOTATION[leaf.name].is_bias
    return not (is_meant or is_bias) and _are_equal(whole, less, size)


def _are_equal(one: Expression, other: Expression, size: MaskSize) -> bool:
    """Return whether two expressions allow the same cells; False where one does not fit this many positions."""
    assert size.queries is not None
    assert size.keys is not None
    try:
        for rows in row_blocks(np.arange(size.queries), size.keys):
            grid = Grid(rows[:, None], size.keys, size.past or 0, size.queries)
            if np.any(one.allowed(grid) != other.allowed(grid)):
                return False
    except InputError:
        return False
    return True


def _larger(expression: Expression, size: MaskSize) -> MaskSize | None:
    """Return a size at which every atom reaches its end; None where that is too large to try."""
    more = 1
    for atom in leaves(expression):
        if isinstance(atom, Atom):
            numbers = [*atom.arguments, *dict(atom.keywords).values()]
            more += prod(numbers) if atom.name == "dilated" else max(numbers, default=0)
    if more > _FARTHEST or size.keys is None:
        return None
    return MaskSize(size.keys + more, size.keys + more, 0)
