"""What a loss says of masks: where it asks a query for the token after its own, the query must not see that token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from attncli.analysis.calls.masks import CallMask
from attncli.masks.findings import MOST_CELLS, Finding, in_batch
from attncli.recording.input_hint import InputHint
from attncli.recording.lineage import Lineage
from attncli.text import plural

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

    from attncli.recording.losses import Loss


def answered(calls: Sequence[tuple[CallMask | None, Lineage | None]], loss: Loss) -> Iterator[tuple[int, InputHint]]:
    """Yield which calls show queries the tokens that a loss asks them for; looked at while the program waits."""
    ahead = [
        (index, mask, lineage)
        for index, (mask, lineage) in enumerate(calls)
        if mask is not None and lineage is not None and _sees_next(mask).any()
    ]
    for targets, history in loss.next_tokens() if ahead else ():
        for index, mask, lineage in ahead:
            cells = _seen_answers(mask, targets)
            if cells.any() and history.has_self_attention(lineage):
                values = np.pad(cells, ((0, 0), (0, 1))).astype(np.int64)
                yield index, InputHint("answers", values, values.shape[1], hash(("answers", values.tobytes())))


def _sees_next(mask: CallMask) -> Bool[np.ndarray, "#B #N"]:
    """Return which queries see the key after their own in some head."""
    _, _, queries, keys = mask.shape
    if mask.is_causal or queries != keys:
        return np.zeros((1, 1), bool)
    planes = [np.broadcast_to(one, (*one.shape[:2], queries, keys)).diagonal(1, 2, 3) for one in mask.given]
    return np.any(reduce(np.logical_and, planes), axis=1) if planes else np.ones((1, 1), bool)


def _seen_answers(mask: CallMask, targets: Int[np.ndarray, "B N"]) -> Bool[np.ndarray, "B N"]:
    """Return where queries that are tokens see what they are asked for; nothing where it is always the same token."""
    if (mask.shape[0], mask.shape[2] - 1) != targets.shape:
        return np.zeros(targets.shape, bool)
    cells: Bool[np.ndarray, "B N"] = (targets >= 0) & mask.rule.tokens[:, :-1] & _sees_next(mask)
    return cells if len(np.unique(targets[cells])) > 1 else np.zeros_like(cells)


def findings_of_answers(told: Sequence[InputHint]) -> Iterator[Finding]:
    """Yield that queries of a call see the tokens that a loss asks them for."""
    for one in told[:1]:
        is_same = bool((one.values == one.values[0]).all())  # in all rows
        seen = one.values[:1] if is_same else one.values
        rows = np.flatnonzero(seen.any(axis=1)).tolist()
        count = int(seen.sum())
        cells = tuple((query, query + 1) for query in np.flatnonzero(seen[rows[0]])[:MOST_CELLS].tolist())
        where = "" if is_same else in_batch(rows)
        message = f"sees the key after its own, whose token the loss asks for, in {plural(count, 'cell')}{where}"
        advice = "what predicts the next token needs a causal mask"
        yield Finding("leak", "error", message, count, cells, advice=advice)
