"""How many positions and heads a mask has: what was said, and what expressions say by their documents and files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from attncli.errors import UsageError
from attncli.masks.algebra import And, Atom, Expression, File, Not, Or
from attncli.masks.notation import MOST

_DEFAULT = 8  # positions, where nothing says how many


class Size(NamedTuple):
    """How many positions a mask is laid over; None is what nobody said.

    Attributes:
        queries: query rows.
        keys: key columns.
        past: how many keys stand before the first query.
    """

    queries: int | None = None
    keys: int | None = None
    past: int | None = None

    def completed(self, fallback: int) -> Size:
        """Return the size with the sides that follow from the others.

        Raises:
            UsageError: they contradict each other.
        """
        queries, keys, past = self.queries, self.keys, self.past
        if queries is None and keys is None:
            queries = fallback
        if keys is None and queries is not None:
            keys = queries + (past or 0)
        if queries is None and keys is not None:
            queries = keys - (past or 0)
        if queries is not None and queries < 1:
            raise UsageError(f"--past {past} leaves no query among {keys} keys")
        return Size(queries, keys, past)


def check_past(past: int | None) -> None:
    """Raise UsageError for a past beyond which positions would not fit into the integers they are counted in."""
    if past is not None and past > MOST:
        raise UsageError(f"--past {past}: expected a number from 0 to {MOST}")


def filled(size: Size, *expressions: Expression) -> Size:
    """Return the size with what the expressions themselves say where nobody else did."""
    if size.queries is None and size.keys is None:
        for file in (file for expression in expressions for file in _files(expression)):
            return Size(file.mask.shape[-2], file.mask.shape[-1], size.past)
    return size.completed(max(map(_documents, expressions), default=0) or _DEFAULT)


def _documents(expression: Expression) -> int:
    """Return how many positions the documents of an expression take."""
    if isinstance(expression, And | Or):
        return max(_documents(side) for side in expression.sides)
    if isinstance(expression, Not):
        return _documents(expression.inner)
    return sum(expression.arguments) if isinstance(expression, Atom) and expression.name == "docs" else 0


def _files(expression: Expression) -> list[File]:
    if isinstance(expression, And | Or):
        return [file for side in expression.sides for file in _files(side)]
    if isinstance(expression, Not):
        return _files(expression.inner)
    return [expression] if isinstance(expression, File) else []


def heads_asked(expression: Expression, heads: int) -> int:
    """Return how many heads an expression is asked for: a mask that all heads share may stand beside files of many."""
    return heads if heads > 1 else max((heads_of(file.mask.shape) for file in _files(expression)), default=1)


def heads_of(shape: Sequence[int]) -> int:
    """Return how many heads a mask of this shape has; 1 where all of them share it."""
    return shape[-3] if len(shape) > 2 else 1
