"""What a loss says of masks: where it asks a query for the token after its own, the query must not see that token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from attncli.analysis.calls.masks import CallMask
from attncli.masks.findings import MOST_CELLS, Finding, Severity, in_batch
from attncli.recording.input_hint import InputHint
from attncli.recording.lineage import Lineage
from attncli.text import plural

if TYPE_CHECKING:
    from jaxtyping import Bool

    from attncli.recording.losses import Loss, NextToken


def answered(calls: Sequence[tuple[CallMask | None, Lineage | None]], loss: Loss) -> Iterator[tuple[int, InputHint]]:
    """Yield which calls show queries the tokens that a loss asks them for; looked at while the program waits."""
    ahead = [
        (index, mask, lineage)
        for index, (mask, lineage) in enumerate(calls)
        if mask is not None and lineage is not None and _sees_next(mask).any()
    ]
    for each in loss.next_tokens() if ahead else ():
        for index, mask, lineage in ahead:
            cells = _seen_answers(mask, each)
            if cells.any() and each.history.has_self_attention(lineage):
                values = np.pad(cells, ((0, 0), (0, 1))).astype(np.int64)
                digest = hash(("answers", each.is_weighted, values.tobytes()))
                yield index, InputHint("answers", values, values.shape[1], digest, not each.is_weighted)


def _sees_next(mask: CallMask) -> Bool[np.ndarray, "#B #N"]:
    """Return which queries see the key after their own in some head."""
    _, _, queries, keys = mask.shape
    if mask.is_causal or queries != keys:
        return np.zeros((1, 1), bool)
    planes = [_next_to_diagonal(one) for one in mask.given]
    return np.any(reduce(np.logical_and, planes), axis=1) if planes else np.ones((1, 1), bool)


def _next_to_diagonal(allowed: Bool[np.ndarray, "#B #H #Q #K"]) -> Bool[np.ndarray, "#B #H #N"]:
    _, _, queries, keys = allowed.shape
    if queries > 1 and keys > 1:
        return np.diagonal(allowed, 1, 2, 3)
    return allowed[:, :, :-1, 0] if queries > 1 else allowed[:, :, 0, 1 if keys > 1 else 0 :]


def _seen_answers(mask: CallMask, loss: NextToken) -> Bool[np.ndarray, "B N"]:
    """Return where queries that are tokens see what a loss asks them for; nothing where it is always the same token."""
    targets = loss.targets
    if (mask.shape[0], mask.shape[2] - 1) != targets.shape:
        return np.zeros(targets.shape, bool)
    asks = (targets >= 0) & mask.rule.tokens[:, :-1]
    cells: Bool[np.ndarray, "B N"] = asks & _sees_next(mask)
    if loss.is_weighted:  # what it weighs with 0 may be all that is seen, unless that is the whole row
        cells &= (cells == asks).all(axis=1, keepdims=True)
    return cells if len(np.unique(targets[cells])) > 1 else np.zeros_like(cells)


def findings_of_answers(told: Sequence[InputHint]) -> Iterator[Finding]:
    """Yield that queries of a call see the tokens that a loss asks them for.

    It is a note where the loss is a number for each position, of which the program may drop some afterwards.
    """
    for one in sorted(told, key=lambda one: not one.is_sure)[:1]:
        is_same = bool((one.values == one.values[0]).all())  # in all rows
        seen = one.values[:1] if is_same else one.values
        rows = np.flatnonzero(seen.any(axis=1)).tolist()
        count = int(seen.sum())
        cells = tuple((query, query + 1) for query in np.flatnonzero(seen[rows[0]])[:MOST_CELLS].tolist())
        where = "" if is_same else in_batch(rows)
        message = f"sees the key after its own, whose token the loss asks for, in {plural(count, 'cell')}{where}"
        severity: Severity = "error" if one.is_sure else "note"
        advice = "what predicts the next token needs a causal mask"
        yield Finding("leak", severity, message, count, cells, advice=advice)
