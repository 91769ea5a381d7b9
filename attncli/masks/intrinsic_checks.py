"""Checks of a mask that need no expectation: inverted and misaligned masks, and queries that see no key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from attncli.masks.expressions import Atom, leaves
from attncli.masks.findings import MOST_CELLS, Finding, error, in_batch, note
from attncli.masks.recognition import Rule, rule_of

if TYPE_CHECKING:
    from jaxtyping import Bool

    Allowed = Bool[np.ndarray, "#B #H #Q #K"]

WHAT_BECOMES = "softmax gives NaN with −inf, a uniform row with finfo.min, and 0 in scaled_dot_product_attention"
_LEAST = 3  # queries; of fewer, a triangle is too small to be one
_LOOKING_BACK = {"causal", "window", "docs", "chunk", "dilated"}  # a query sees itself in each of them


def intrinsic_findings(allowed: Allowed, rule: Rule, past: int, becomes: str = WHAT_BECOMES) -> Iterator[Finding]:
    """Yield the findings of a mask and its rule that need no expectation.

    `past` is the number of keys before the first query, `becomes` the output of a fully masked query in the program.
    """
    inverted = _inverted(allowed, rule)
    if inverted is not None:
        yield inverted
        return  # rows that see nothing follow from it
    yield from _dead_queries(allowed, rule, becomes)
    if any(variant.past == 0 != past for variant in rule.variants):
        yield note(
            "shape", f"aligned top-left: query 0 sees key 0 alone, and not the {past} keys before the last queries"
        )


def _inverted(allowed: Allowed, rule: Rule) -> Finding | None:
    """Return that True and False are swapped, if the complement of a mask is a usual mask.

    Either no query sees itself, as padding may, and each does in the complement, which is a rule. Or rows of the
    batch see nothing, and in the complement every row has keys from its beginning, or up to its end.
    """
    batch, heads, queries, keys = rule.shape
    empty, swapped = ~rule.tokens.any(axis=1), ~rule.tokens
    if rule.expression is not None and empty.any() and swapped.any(axis=1).all() and _is_sorted(swapped):
        message = f"attends to padding only, so that rows without padding see nothing{in_batch(np.flatnonzero(empty))}"
        return error("leak", f"{message}: True and False are swapped", int(rule.tokens.sum()))
    if queries != keys or queries < _LEAST or rule.expression is not None:
        return None
    other = rule_of(~allowed, rule.shape, 0)
    atoms = leaves(*filter(None, [other.expression]))  # the complement of a window of 1 is a mask in use
    names = {leaf.name for leaf in atoms if isinstance(leaf, Atom) and leaf != Atom("window", (1,))}
    own_cells = (np.arange(keys) if side > 1 else np.zeros(keys, int) for side in allowed.shape[2:])
    sees_itself = np.any(allowed[:, :, *own_cells], axis=1)  # in some head
    if not names & _LOOKING_BACK or (sees_itself & other.tokens).any():
        return None
    count = int(np.count_nonzero(allowed)) * (batch * heads * queries * keys // allowed.size)
    return error("leak", f"attends only where {other.text} forbids: True and False are swapped", count)


def _is_sorted(rows: Bool[np.ndarray, "B N"]) -> bool:
    """Return whether every row begins with its True cells, or every row ends with them."""
    return bool((rows[:, :-1] >= rows[:, 1:]).all() or (rows[:, :-1] <= rows[:, 1:]).all())


def _dead_queries(allowed: Allowed, rule: Rule, becomes: str) -> Iterator[Finding]:
    """Yield the queries that see nothing in some head; those that are padding are a note."""
    batch, _, queries, keys = rule.shape
    dead = np.broadcast_to(np.any(~np.any(allowed, axis=-1), axis=1), (batch, queries))
    if not dead.any():
        return
    padding = np.zeros((batch, queries), bool)
    if queries == keys:
        padding = ~rule.tokens | (dead & ~np.any(allowed, axis=(1, 2)))  # a key that no query sees
    elif queries > 1:  # of another sequence, whose padding is at one of its ends, or of the last positions
        padding = dead & [[_is_sorted(row[None])] for row in dead]
    padding = padding & ~dead.all(axis=1, keepdims=True)  # a row whose queries are all fully masked is not padded
    if queries != keys:  # where some heads see keys that others do not, heads are blocks of positions, some all padding
        padding |= dead & np.any(allowed, axis=(1, 3))
    for finding, which, kind in ((error, dead & ~padding, ""), (note, dead & padding, "padding ")):
        hidden = np.flatnonzero(which.any(axis=0)).tolist()
        if hidden:
            message = f"{len(hidden)} {kind}{'query is' if len(hidden) == 1 else 'queries are'} fully masked"
            message += in_batch(np.flatnonzero(which.any(axis=1))) if batch > 1 else ""
            yield finding("dead-row", f"{message}: {becomes}", len(hidden), rows=tuple(hidden[:MOST_CELLS]))
