"""What the queries of padding see where the queries of words follow a rule, such as nothing or every key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from attncli.masks.expressions import Expression, Grid

if TYPE_CHECKING:
    from jaxtyping import Bool

# What queries see that do not follow the rule of the others; all but `masked` are queries of padding.
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
    """Some queries of a batch see something else than the rule says: mostly padding, whose output nobody reads.

    Attributes:
        inner: the rule of the others, with the padding of each batch row.
        rule: without it.
        tokens: which keys are no padding.
        where: which queries.
        exception: what they see; of `others` only that it is something else.
        who: they are, in words: `padding`, `some padding` or `some`.
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
        own = exception_cells(self.exception, self.rule.allowed(grid), self.tokens, grid)
        return np.where(self.where[:, None, grid.queries[:, 0], None], own[:, None], inner)

    def __str__(self) -> str:
        return f"{self.inner}, {self.who} queries {SEEN_BY_PADDING[self.exception]}"


def exception_cells(
    exception: ExceptionKind, rule: Bool[np.ndarray, "Q K"], tokens: Bool[np.ndarray, "#B K"], grid: Grid
) -> Bool[np.ndarray, "#B Q K"]:
    """Return the cells of queries that see something else than a rule, which allows `rule` of them."""
    words, own = tokens[:, None], (grid.i == grid.j)[None]
    match exception:
        case "masked":
            return np.zeros((1, *rule.shape), bool)
        case "open":
            return np.ones((1, *rule.shape), bool)
        case "themselves":
            return np.broadcast_to(own, (1, *rule.shape))
        case "words":
            return (rule & words) | own
        case "each other":
            return rule & ~words
        case "padding":
            return rule[None]
    raise ValueError("what the others see is not known")
