"""Padding in a mask: what the queries see that stand at padding, and which keys are padding where nobody says it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from attncli.masks.expressions import Expression, Grid, with_lengths

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
# Queries of padding that see these show that they are padding, however many they are.
_PLAIN: tuple[ExceptionKind, ...] = ("each other", "padding")


class RuleWithExceptions(NamedTuple):
    """Some queries of a batch see something else than the rule says: mostly padding, whose output nobody reads.

    Attributes:
        inner: the rule of the others, with the padding of each batch row.
        rule: without it.
        tokens: which keys are no padding.
        where: which queries.
        see: what they see; of `others` only that it is something else.
        who: they are, in words: `padding`, `some padding` or `some`.
    """

    inner: Expression
    rule: Expression
    tokens: Bool[np.ndarray, "#B K"]
    where: Bool[np.ndarray, "B Q"]
    see: ExceptionKind
    who: Literal["padding", "some padding", "some"]

    def allowed(self, grid: Grid) -> Bool[np.ndarray, " ..."]:
        """See `Expression.allowed`."""
        inner = self.inner.allowed(grid)
        own = None if self.see == "others" else seen_by(self.see, self.rule.allowed(grid), self.tokens, grid)
        return inner if own is None else np.where(self.where[:, None, grid.queries[:, 0], None], own[:, None], inner)

    def __str__(self) -> str:
        return f"{self.inner}, {self.who} queries {SEEN_BY_PADDING[self.see]}"


def seen_by(
    see: ExceptionKind, rule: Bool[np.ndarray, "Q K"], tokens: Bool[np.ndarray, "#B K"], grid: Grid
) -> Bool[np.ndarray, "#B Q K"]:
    """Return the cells of queries that see something else than a rule, which allows `rule` of them."""
    words = tokens[:, None]
    if see == "masked":
        return np.zeros((1, *rule.shape), bool)
    if see == "open":
        return np.ones((1, *rule.shape), bool)
    if see == "themselves":
        return np.broadcast_to(grid.i == grid.j, (1, *rule.shape))
    return {"words": (rule & words) | (grid.i == grid.j), "each other": rule & ~words, "padding": rule[None]}[see]


def padding_under(
    expected: Expression, allowed: Bool[np.ndarray, "B Q K"], past: int, tokens: Bool[np.ndarray, "B K"]
) -> Bool[np.ndarray, "B K"]:
    """Return which keys are no padding, where the queries of words follow an expression only with more of it.

    Args:
        expected: the expression; how much its `pad` hides is to be found.
        allowed: True = attend.
        past: how many keys stand before the first query.
        tokens: which keys are taken for no padding; a row that follows the expression with them keeps them.
    """
    _, queries, keys = allowed.shape
    if past + queries != keys or queries == 1:
        return tokens
    grid = Grid(np.arange(queries)[:, None], keys, past, queries, 1)
    rule = with_lengths(expected, np.ones((1, keys), bool)).allowed(grid).reshape(-1, queries, keys)[0]
    found = tokens.copy()
    is_batch = len(allowed) > 1
    for row, (cells, own) in enumerate(zip(allowed, tokens, strict=True)):
        if not ((cells != (rule & own)).any(axis=1) & own[past:]).any():
            continue
        for words in sorted(_ends(cells, rule, past), key=lambda each: -int(each.sum())):
            others = grid._replace(queries=grid.queries[~words[past:]])
            if _are_padding(cells[~words[past:]], rule[~words[past:]], words, others, is_batch):
                found[row] = words
                break
    return found if 2 * int(found.sum(axis=1).max()) >= keys else tokens


def _are_padding(
    cells: Bool[np.ndarray, "N K"],
    rule: Bool[np.ndarray, "N K"],
    words: Bool[np.ndarray, " K"],
    grid: Grid,
    is_batch: bool,
) -> bool:
    """Return whether queries see what queries of padding do: the words by the rule, or all of them something else."""
    others = (cells != (rule & words)).any(axis=1)
    few = not is_batch and 4 * int(words.sum()) < len(words)  # to which anything may come down
    return not others.any() or any(
        not (others & (cells != seen_by(see, rule, words[None], grid)[0]).any(axis=1)).any()
        for see in SEEN_BY_PADDING
        if see in _PLAIN or not (few or see == "others")
    )


def _ends(cells: Bool[np.ndarray, "Q K"], rule: Bool[np.ndarray, "Q K"], past: int) -> Iterator[Bool[np.ndarray, " K"]]:
    """Yield the words of a row with padding at its right, then at its left end, as many as follow a rule."""
    queries, keys = cells.shape
    places = np.arange(keys)
    for turn in (1, -1):
        seen, wrong = cells[::turn, ::turn], (cells != rule)[::turn, ::turn]
        last = np.where(seen, places + 1, 0).max(axis=1)  # one behind the last key that a query sees
        right = np.where(wrong, places, keys).min(axis=1)  # the first key that it sees against the rule, or misses
        most, least = np.minimum.accumulate(right), np.maximum.accumulate(last)
        lengths = np.arange(1, queries + 1) + (past if turn == 1 else 0)
        fits = (least <= lengths) & (lengths <= most) & (lengths < keys)
        if fits.any():
            length = int(lengths[fits].max())
            yield (places < length)[::turn]
