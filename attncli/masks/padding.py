"""Masks whose queries of padding deviate from the rule of the others, such as rows that are fully masked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from attncli.masks.expressions import Expression, Grid

if TYPE_CHECKING:
    from jaxtyping import Bool

# Keys of the queries that deviate from the rule; all but `masked` are queries of padding.
ExceptionKind = Literal["masked", "open", "themselves", "words", "each other", "padding", "others"]

SEEN_BY_PADDING: dict[ExceptionKind, str] = {
    "masked": "see nothing",
    "open": "see every key",
    "themselves": "see themselves alone",
    "words": "see the words and themselves",
    "each other": "see each other",
    "padding": "see padding too",
    "others": "see other keys",
}


class RuleWithExceptions(NamedTuple):
    """A rule that some queries of a batch do not follow: mostly padding, whose outputs are not used.

    Attributes:
        inner: the rule of the others, with the padding of each batch row.
        rule: the rule without padding.
        tokens: the keys that are not padding.
        where: the queries that deviate.
        exception: their keys; `others` if no kind fits.
        who: the queries in words: `padding`, `some padding` or `some`.
    """

    inner: Expression
    rule: Expression
    tokens: Bool[np.ndarray, "#B K"]
    where: Bool[np.ndarray, "B Q"]
    exception: ExceptionKind
    who: Literal["padding", "some padding", "some"]

    def allowed(self, grid: Grid) -> Bool[np.ndarray, " ..."]:
        """See `Expression.allowed`."""
        inner = self.inner.allowed(grid)
        if self.exception == "others":
            return inner
        exceptions = exception_cells(self.exception, self.rule.allowed(grid), self.tokens, grid)
        return np.where(self.where[:, None, grid.queries[:, 0], None], exceptions[:, None], inner)

    def __str__(self) -> str:
        return f"{self.inner}, {self.who} queries {SEEN_BY_PADDING[self.exception]}"


def exception_cells(
    exception: ExceptionKind, rule: Bool[np.ndarray, "Q K"], tokens: Bool[np.ndarray, "#B K"], grid: Grid
) -> Bool[np.ndarray, "#B Q K"]:
    """Return the cells of queries that deviate from a rule, given those that the rule allows."""
    words, diagonal = tokens[:, None], (grid.i == grid.j)[None]
    match exception:
        case "masked":
            return np.zeros((1, *rule.shape), bool)
        case "open":
            return np.ones((1, *rule.shape), bool)
        case "themselves":
            return np.broadcast_to(diagonal, (1, *rule.shape))
        case "words":
            return (rule & words) | diagonal
        case "each other":
            return rule & ~words
        case "padding":
            return rule[None]
    raise ValueError("what the others see is not known")
