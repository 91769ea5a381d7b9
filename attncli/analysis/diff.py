"""Difference of two traces: the heads by the divergence of their weights, and the cells that changed most."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attncli.analysis.alignment import (
    NAMES,
    Alignment,
    LayerPair,
    alignments,
    chosen_rows,
    layer_pairs,
    not_compared,
    unmatched_heads,
)
from attncli.analysis.metrics import countable_rows
from attncli.analysis.warnings import warnings_of
from attncli.errors import InputError
from attncli.text import as_list, plural, quoted
from attncli.trace.display import Displayed
from attncli.trace.layer import HeadTrace
from attncli.trace.trace import Trace
from attncli.trace.view import View

if TYPE_CHECKING:
    from jaxtyping import Float, Int

# A row of a softmax that was rounded to bfloat16 sums to 1 within this; what lacks more has gone to a sink.
_ROUNDING = 1e-2


def jensen_shannon(first: Float[np.ndarray, "R O"], second: Float[np.ndarray, "R O"]) -> Float[np.ndarray, " R"]:
    """Return the Jensen-Shannon divergence of each row of two matrices, in bits.

    It is the mean of the divergences (Kullback and Leibler, base 2) of both from their mean (Lin 1991, "Divergence
    measures based on the Shannon entropy"): 0 where they are the same, 1 where they share nothing. Rows sum to 1.
    """
    both = np.stack([first, second])
    with np.errstate(divide="ignore", invalid="ignore"):  # 0·log 0 is 0: an outcome without weight adds nothing
        bits = np.where(both == 0, 0.0, both * np.log2(both / both.mean(axis=0)))
    return np.clip(bits.sum(axis=-1).mean(axis=0), 0.0, 1.0)


def shared_outcomes(
    weights: Float[np.ndarray, "R K"], shared: Int[np.ndarray, " S"], has_sink: bool
) -> Float[np.ndarray, "R O"]:
    """Return rows of weights as distributions over the `S` shared keys, and the rest: other keys, and a sink."""
    rows = weights.astype(np.float64)
    lacking = 1 - rows.sum(axis=-1)
    elsewhere = np.delete(rows, shared, axis=1).sum(axis=-1)
    elsewhere += np.where(lacking > (0 if has_sink else _ROUNDING), lacking, 0)
    outcomes = np.column_stack([rows[:, shared], elsewhere])
    return outcomes / outcomes.sum(axis=-1, keepdims=True)


TOP = 10
NOTABLE = 0.05  # bits, a tenth of the weight on a new key: a head that changed by more counts as changed
CHANGED = 5e-5  # of a divergence in bits, or of a weight: what four digits show; less is rounding


@dataclass(frozen=True)
class HeadDifference:
    """Distance of one head from its counterpart; None where no row counts."""

    layer: int  # index of the layer, in both
    kind: str  # the layer's kind of attention
    head: int  # the head, in both
    jensen_shannon: float | None  # mean over the rows, in bits: 0 the same, 1 nothing in common
    rows: int  # how many query rows that is the mean of
    elsewhere: tuple[float, float] | None  # mean weight in A and in B on tokens that are not shared, and in a sink


@dataclass(frozen=True)
class CellDifference:
    """Cell that both have."""

    layer: int
    kind: str  # the layer's kind of attention
    head: int
    query: tuple[int, int]  # position of the query token in A and in B
    key: tuple[int, int]  # likewise of the key token
    weights: tuple[float, float]  # in A and in B

    @property
    def difference(self) -> float:
        """How much more weight B gives."""
        return self.weights[1] - self.weights[0]


@dataclass(frozen=True)
class Difference(Displayed):
    """Two traces compared; a notebook shows it as `attn diff` does."""

    first: Trace  # A
    second: Trace  # B
    queries: Alignment  # the query tokens that they share
    keys: Alignment  # the key tokens that they share
    layers: tuple[LayerPair, ...]  # those that were compared
    heads: tuple[HeadDifference, ...]  # every compared head, the most changed one first; those without a number last
    cells: tuple[CellDifference, ...]  # those whose weights differ most, the most changed one first
    notes: tuple[str, ...]  # remarks on heads, rows and words that are not compared, a sentence each

    def __repr__(self) -> str:
        sides = " / ".join(quoted(trace.text or trace.target or "") for trace in (self.first, self.second))
        furthest = self.heads[0].jensen_shannon
        most = "" if furthest is None else f", at most {furthest:.3g} bits apart"
        return f"Difference({sides}, {plural(len(self.heads), 'head')}{most})"

    def pair(self, of: HeadDifference | CellDifference) -> LayerPair:
        """Return the layer that a head or a cell belongs to."""
        return next(pair for pair in self.layers if pair.layer_kind == (of.layer, of.kind))


def diff(first: Trace, second: Trace, *, queries: str | int | Iterable[str | int] = (), top: int = TOP) -> Difference:
    """Compare two traces: two sentences, two models, or the same before and after.

        before, after = (attncli.inspect("time flies", model=name, layer="all") for name in ("old", "new"))
        attncli.diff(before, after).heads[0]    # the most changed head

    A head is compared with the head of the same number in the layer of the same number and kind; query rows and key
    columns are those of the tokens that both share. The weight on everything else is one outcome more of each row.

    Args:
        first: A.
        second: B.
        queries: a token of A, by its text or position, or several, whose rows are compared; none means all shared
            ones.
        top: how many cells to keep.

    Raises:
        UsageError: a query does not exist or is not shared, or a trace is derived.
        InputError: the two have no token, or no head of a layer, in common.
    """
    for trace in (first, second):
        trace.check_recorded("diff")
    of_queries, of_keys = alignments(first, second)
    if not of_queries.pairs or not of_keys.pairs:
        raise InputError("the two sentences share no token; give two that do")
    chosen = chosen_rows(of_queries, list(as_list(queries)))
    layers = tuple(layer_pairs(first, second, (of_queries, of_keys), chosen))
    heads: list[HeadDifference] = []
    cells: list[CellDifference] = []
    fewer = 0
    for pair in layers:
        for head in pair.heads:
            measured, changed = _measured(pair, head, top)
            heads.append(measured)
            fewer += measured.rows < len(pair.chosen)
            cells = heapq.nlargest(top, [*cells, *changed], key=lambda cell: abs(cell.difference))
    if not heads:
        raise InputError(f"the two have no head in common: {'; '.join(not_compared(first, second))}")
    heads.sort(key=lambda head: -1.0 if head.jensen_shannon is None else head.jensen_shannon, reverse=True)
    pieces = (first.query_tokens.pieces_note(query) for query in as_list(queries))
    notes = [*filter(None, pieces), *not_compared(first, second), *unmatched_heads(first, second, layers)]
    if fewer:
        heads_have = "head has" if fewer == 1 else "heads have"
        notes.append(f"{fewer} {heads_have} rows that were not compared: without a key, padding, or NaN")
    return Difference(first, second, of_queries, of_keys, layers, tuple(heads), tuple(cells), tuple(notes))


def _measured(pair: LayerPair, head: int, top: int) -> tuple[HeadDifference, list[CellDifference]]:
    """Return how far a head is from its counterpart, and its most changed cells."""
    divergences, elsewhere, cells = [], [], list[CellDifference]()
    for blocks in pair.blocks(head):
        # Rows are compared that count in both, and hold no NaN or infinity.
        mine, theirs = (countable_rows(block.stages)[0] & np.isfinite(block.weights).all(axis=-1) for block in blocks)
        outcomes = [
            shared_outcomes(block.weights[mine & theirs], keys, block.layer.sinks is not None)
            for block, keys in zip(blocks, pair.keys, strict=True)
        ]
        divergences.append(jensen_shannon(*outcomes))
        elsewhere.append(np.stack([rows[:, -1] for rows in outcomes]))
        cells += _most_changed(pair, head, blocks, top)
    rows = np.concatenate(divergences)
    if not rows.size:
        return HeadDifference(*pair.layer_kind, head, None, 0, None), cells
    first, second = np.concatenate(elsewhere, axis=1).mean(axis=1).tolist()
    return HeadDifference(*pair.layer_kind, head, float(rows.mean()), len(rows), (first, second)), cells


def weights_of(pair: LayerPair, blocks: tuple[HeadTrace, HeadTrace]) -> list[Float[np.ndarray, "R S"]]:
    """Return the weights in A and in B of some rows on the shared keys."""
    return [block.weights[:, keys] for block, keys in zip(blocks, pair.keys, strict=True)]


def _most_changed(
    pair: LayerPair, head: int, blocks: tuple[HeadTrace, HeadTrace], top: int
) -> Iterator[CellDifference]:
    """Yield the cells of some rows whose weights differ most, in no order."""
    first, second = weights_of(pair, blocks)
    change = np.nan_to_num(np.abs(second - first), nan=0.0, posinf=0.0)  # a NaN has a mark, but is no change
    changed = np.flatnonzero(change)
    if len(changed) > top:
        changed = changed[np.sort(np.argpartition(-change.ravel()[changed], top)[:top])]
    for row, column in zip(*np.unravel_index(changed, change.shape), strict=True):
        query = int(blocks[0].queries[row]), int(blocks[1].queries[row])
        # By way of their own shortest digits: a float32 has no more to give.
        weights = float(str(first[row, column])), float(str(second[row, column]))
        yield CellDifference(*pair.layer_kind, head, query, pair.columns.pairs[column], weights)


def warnings_of_both(difference: Difference) -> Iterator[str]:
    """Yield the warnings about both traces, a sentence each; one about a single trace names it."""
    warnings: dict[str, list[str]] = {}
    for name, trace in zip(NAMES, (difference.first, difference.second), strict=True):
        for warning in (*trace.source.notes, *warnings_of(trace, View())):
            warnings.setdefault(warning, []).append(name)
    for warning, names in warnings.items():
        yield f"{'' if len(names) == len(NAMES) else f'{names[0]}: '}{warning}"
