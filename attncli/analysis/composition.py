"""One score as a sum over the model below it: the writers of its key, and those of its query.

    score = q·k · scale = Σ q·(what a writer wrote of the key) · scale = Σ (what a writer wrote of the query)·k · scale

The writers are the embedding, each head and each feed-forward network (MLP) of the layers below, and biases; the scale
of each norm is held at what it is in this forward pass (Elhage et al. 2021, "A Mathematical Framework for Transformer
Circuits"). A term's margin is its value at this key less its mean over the other keys that the query may attend to:
what is the same at every key decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from attncli.analysis.cell import AttentionCell
from attncli.analysis.why import Explained
from attncli.errors import AttnError, NotExposedError, UsageError
from attncli.text import visible
from attncli.trace.display import Displayed, Tabular
from attncli.trace.trace import Trace

Side = Literal["key", "query"]


class Term(NamedTuple):
    """Part of a score that one writer adds."""

    side: Side  # whether it wrote this of the key, or of the query
    writer: str  # `embedding` of the token, its `position` or `segment`, `head`, `mlp` or `bias`
    layer: int | None  # the writer's; None of the embedding
    head: int | None  # which head it is
    value: float  # what it adds
    margin: float  # the same less its mean over the other keys that the query may attend to


@dataclass(frozen=True)
class Composition(Displayed, Tabular):
    """The score of a cell, split by what wrote its key, and by what wrote its query."""

    cell: AttentionCell  # the query and the key of a head
    # of the key, then of the query, those with the largest margin first; either add up to the score
    terms: tuple[Term, ...]
    others: int  # how many other keys the query may attend to

    def __repr__(self) -> str:
        return f"Composition({self.cell}, {len(self.terms)} terms)"

    @property
    def trace(self) -> Trace:
        """The trace that the head is of."""
        trace: Trace = self.cell.row.layer.parent
        return trace

    @property
    def score(self) -> float:
        """The scaled product q·k, which a softcap would change afterwards."""
        assert self.cell.scaled is not None
        return float(self.cell.scaled)

    def of_side(self, side: Side) -> list[Term]:
        """Return the terms of the key, or of the query."""
        return [term for term in self.terms if term.side == side]

    @property
    def margin(self) -> float:
        """The score less its mean over the other keys."""
        return sum(term.margin for term in self.of_side("key"))


def composition(explained: Explained) -> Composition:
    """Return the score of one cell, split by its writers; of one row, that of its heaviest key.

    Raises:
        UsageError: there are several, the trace has no model, or the query may attend to no other key.
        NotExposedError: the native engine did not compute the trace.
    """
    cells = [item if isinstance(item, AttentionCell) else AttentionCell(item, item.heaviest) for item in explained]
    cell = max(cells, key=lambda cell: cell.weight)
    row, trace = cell.row, cell.row.layer.parent
    layer, head, query = row.layer.layer, row.head.head, row.query.index
    if len(cells) > 1:
        why = f"--composition splits the score of one head, not of {len(cells)}"
        raise UsageError(f"{why}; give --head {layer}.{head}, the heaviest")
    if trace.forward is None:
        raise _no_model(trace)
    other_keys = [key for key in np.flatnonzero(row.allowed).tolist() if key != cell.key.index]
    if not other_keys:
        raise UsageError(f"query {query} may attend to one key alone, and a margin compares two; give a later --query")
    sides = trace.forward.score_terms(layer, head, query, [cell.key.index, *other_keys])
    terms = [
        Term(side, writer.kind, writer.layer, writer.head, float(values[0]), float(values[0] - values[1:].mean()))
        for side, written in sides.items()
        for writer, values in written.items()
    ]
    return Composition(cell, tuple(sorted(terms, key=lambda term: (term.side, -abs(term.margin)))), len(other_keys))


def _no_model(trace: Trace) -> AttnError:
    source = trace.source
    if source.kind == "toy":
        return UsageError("--composition needs layers below, and the toy layer has its embedding alone; give --model")
    if source.kind != "pretrained" or source.details.get("engine") == "native":
        return UsageError("--composition needs the weights of a checkpoint; give --model and the text")
    why = f"--composition needs the native engine, and another one computed {visible(source.title)}"
    return NotExposedError(f"{why}; give --engine native")
