"""Comparison of masks, cell by cell: two of them, and an expression with and without each of its atoms."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attncli.errors import InputError
from attncli.masks.expressions import And, Atom, Expression, Mask, Or, RuleMask, batch_rows, leaves
from attncli.masks.mask_grid import MaskGrid, MaskSize, materialise
from attncli.text import visible

if TYPE_CHECKING:
    from jaxtyping import Bool


@dataclass(frozen=True)
class Comparison:
    """Two masks side by side; where they have several planes, a cell counts once however many differ."""

    names: tuple[str, str]  # the names of the two
    only_first: Bool[np.ndarray, "Q K"]  # cells that only the first one allows
    only_second: Bool[np.ndarray, "Q K"]  # cells that only the second one allows
    both: Bool[np.ndarray, "Q K"]  # cells that both allow in every plane
    past: int  # how many keys stand before the first query
    first_key: int = 0  # the position of the first column; of padding before a sentence it is below 0
    batch_row: int = 0  # the batch row that the cells are of, where a batch has several

    @property
    def count(self) -> int:
        """How many cells differ."""
        return int(np.count_nonzero(self.only_first | self.only_second))


def first_difference(
    allowed: Bool[np.ndarray, "#B #H Q K"], expected: Bool[np.ndarray, "#B #H Q K"], past: int
) -> Comparison | None:
    """Compare a call with the expected mask in the first batch row and head that differ; None without any."""
    allowed, expected = np.broadcast_arrays(allowed, expected)
    places = np.argwhere((allowed != expected).any(axis=(2, 3)))
    if not len(places):
        return None
    row, head = places[0].tolist()
    name = "the call" + f", batch row {row}" * (len(allowed) > 1) + f", head {head}" * (allowed.shape[1] > 1)
    first, second = allowed[row, head], expected[row, head]
    return Comparison((name, "expected"), first & ~second, second & ~first, first & second, past, batch_row=row)


def compare(first: MaskGrid, second: MaskGrid) -> Comparison:
    """Compare two masks, head by head and batch row by batch row where one of them has several.

    Raises:
        InputError: they are not of one size.
    """
    cells, other = first.cells, second.cells
    try:
        planes = tuple(range(len(np.broadcast_shapes(cells.shape, other.shape)) - 2))
        differ = cells.shape[-2:] != other.shape[-2:]
    except ValueError:
        differ = True
    if differ:
        shapes = " and ".join(f"{visible(subject.name)} is {list(subject.shape)}" for subject in (first, second))
        raise InputError(f"masks of different sizes cannot be compared: {shapes}")
    return Comparison(
        (first.name, second.name),
        (cells & ~other).any(axis=planes),
        (other & ~cells).any(axis=planes),
        (cells & other).all(axis=planes),
        first.past,
    )


_MOST_SIDES, _MOST_COMPARED = 16, 2**24  # cells, in the search for atoms without effect
_BACKWARD = {"window", "dilated"}  # they forbid the future too; `causal` next to them makes that clear to a reader


def idle_note(expression: Expression, size: MaskSize) -> str | None:
    """Return a sentence about the sides of `&` or `|` without which the same cells are allowed; None without any."""
    count = (size.queries or 0) * (size.keys or 0) * (batch_rows(expression) or 1)
    if not isinstance(expression, And | Or) or len(expression.sides) > _MOST_SIDES or count > _MOST_COMPARED:
        return None
    idle, rest = list[str](), expression.sides
    with suppress(InputError):  # it does not fit this many positions
        cells = materialise(expression, size)
        for side in expression.sides:
            sides = tuple(one for one in rest if one is not side)
            names = {leaf.name for leaf in leaves(*sides) if isinstance(leaf, Atom)}
            is_clear = side == Atom("causal") and not names.isdisjoint(_BACKWARD)
            if sides and not is_clear and not np.any(materialise(type(expression)(sides), size) != cells):
                idle, rest = [*idle, str(side)], sides
    verb = "has" if len(idle) == 1 else "have"
    equal = type(expression)(rest)
    return f"{', '.join(idle)} {verb} no effect at this size: the expression equals {equal}" if idle else None


def idle_notes(masks: Iterable[Mask]) -> list[str]:
    """Return a note for each mask of the layers that has atoms without effect, each once."""
    rules = {mask[1:]: mask for mask in masks if isinstance(mask, RuleMask)}
    notes = (idle_note(rule.expression, MaskSize(rule.queries, rule.keys, rule.past)) for rule in rules.values())
    return list(dict.fromkeys(filter(None, notes)))
