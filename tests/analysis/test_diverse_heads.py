"""The heads that differ most: of copies one is chosen, and the odd one out always."""

from dataclasses import replace

import numpy as np

import attncli
from attncli.analysis.diverse_heads import most_different
from attncli.trace.layer import LayerTrace

QUERIES, KEYS = range(6), 6


def layer_of(*patterns: np.ndarray) -> LayerTrace:
    trace = attncli.inspect("a b c d e f", num_heads=len(patterns), d_model=2 * len(patterns), mask="none")
    weights = np.stack(patterns).astype(np.float32)
    return replace(trace.layers[0], recorded_scores=np.zeros_like(weights), recorded_weights=weights)


UNIFORM, SELF, FIRST = np.full((6, 6), 1 / 6), np.eye(6), np.eye(6)[[0] * 6]


def test_each_is_unlike_those_before_it() -> None:
    layer = layer_of(UNIFORM, SELF, UNIFORM, SELF, FIRST, UNIFORM)
    chosen = most_different([layer], QUERIES, 3)
    kinds = [tuple(layer.head(head).weights[1]) for _, head in chosen]
    assert len(set(kinds)) == 3
    assert list(chosen) == sorted(chosen)


def test_rows_that_attend_to_nothing_count_for_none() -> None:
    odd = UNIFORM.copy()
    odd[2] = np.nan
    layer = layer_of(UNIFORM, odd, SELF, UNIFORM)
    assert (0, 2) in most_different([layer], QUERIES, 2)
