"""The detectors of heads of TransformerLens, on repeated random tokens: the standard test for induction heads.

A detector is a pattern, the cells on which a head of a kind would put its weight, and its score is the share of all
weight that is there: `transformer_lens.head_detector.detect_head` with its default `error_measure="mul"`.
<https://github.com/TransformerLensOrg/TransformerLens/blob/main/transformer_lens/head_detector.py>
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from attncli.analysis.metric_names import DETECTORS
from attncli.trace.layer import LayerTrace, stages_of
from attncli.trace.trace import Trace

if TYPE_CHECKING:
    from jaxtyping import Float


def detections(trace: Trace, layer: LayerTrace) -> Float[np.ndarray, "H M"]:
    """Return the score of every detector, in the order of `DETECTORS`, of the layer's chosen heads.

    They are over all query rows; NaN where queries and keys are not the same positions.
    """
    queries, keys = trace.sides(layer)
    found = np.zeros((len(layer.heads), len(DETECTORS)))
    if layer.kind == "cross" or keys[: len(queries)] != tuple(queries):
        return np.full_like(found, np.nan, dtype=np.float32)
    totals = np.zeros(len(layer.heads))
    ids, positions = np.array(queries.ids), np.arange(len(queries))
    for block in stages_of(layer, layer.heads, positions):
        rows = block.queries[:, None]
        earlier = (ids[rows] == ids) & (positions < rows)
        after = np.zeros_like(earlier)
        after[:, 1:] = earlier[:, :-1]
        first = layer.heads.index(block.heads[0])
        some = slice(first, first + len(block.heads))
        weights = block.weights[..., : len(queries)]
        totals[some] += block.weights.sum(axis=(1, 2), dtype=float)
        for number, pattern in enumerate((after, positions == rows - 1, earlier)):  # in the order of `DETECTORS`
            found[some, number] += (weights * pattern).sum(axis=(1, 2), dtype=float)
    with np.errstate(invalid="ignore"):
        return (found / totals[:, None]).astype(np.float32)


def cautions(trace: Trace) -> Iterator[str]:
    """Yield what the test means less for than it seems: layers in which a query may attend to a later key."""
    first = np.array([0])
    if any(layer.mask.rows(list(layer.heads), first)[..., 1:].any() for layer in trace.layers):
        yield (
            "queries of this model see later keys, where a token stands a second time; --induction is a test of causal "
            "models"
        )
