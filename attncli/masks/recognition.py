"""Which rule a mask follows, as an expression of `attncli.masks.algebra`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from attncli.attention import row_blocks
from attncli.masks.algebra import And, Atom, Expression, RuleMask

if TYPE_CHECKING:
    from jaxtyping import Bool


def recognized(allowed: Bool[np.ndarray, "Q K"], past: int) -> Expression | None:
    """Return the simplest expression that gives exactly these cells, or None where no simple one does."""
    queries, keys = allowed.shape
    for expression in _candidates(allowed, past):
        rule = RuleMask(expression, queries, keys, 1, past)
        blocks = row_blocks(np.arange(queries), keys)
        if all(np.array_equal(rule.rows([0], rows)[0], allowed[rows]) for rows in blocks):
            return expression
    return None


def _candidates(allowed: Bool[np.ndarray, "Q K"], past: int) -> Iterator[Expression]:
    """Yield the expressions that these cells could be, plain ones before those with padding."""
    rules = list(_rules(allowed, past))
    yield from rules
    seen = np.flatnonzero(allowed.any(axis=0))
    if not len(seen):
        return
    left, right = int(seen[0]), allowed.shape[1] - 1 - int(seen[-1])
    for side, count in (("left", left), ("right", right)):
        if count:
            pad = Atom("pad", keywords=((side, count),))
            yield from (pad if rule == Atom("full") else And((rule, pad)) for rule in rules)


def _rules(allowed: Bool[np.ndarray, "Q K"], past: int) -> Iterator[Expression]:
    most = int(allowed.sum(axis=1).max())
    if not most:
        return
    yield Atom("full")
    yield Atom("causal")
    yield Atom("window", (most,))
    yield And((Atom("causal"), Atom("chunk", (most,))))
    rows, columns = np.nonzero(allowed)
    back = rows + past - columns
    yield Atom("band", (max(int(back.max()), 0), max(int(-back.min()), 0)))
