"""The detectors against plain loops over TransformerLens's definitions."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metrics_by_hand import HEADS, tokens, traced
from traces import layer_of, trace_of

import attncli
from attncli.analysis.induction import cautions, detections
from attncli.analysis.metric_names import DETECTORS, NAMES


def patterns(ids: list[int]) -> dict[str, list[list[int]]]:
    """The detection patterns of TransformerLens's head_detector.py: 1 where a head of that name would look."""
    count = len(ids)
    of: dict[str, list[list[int]]] = {name: [[0] * count for _ in ids] for name in DETECTORS}
    for query, key in product(range(count), repeat=2):
        of["previous_token_head"][query][key] = int(key == query - 1)
        of["duplicate_token_head"][query][key] = int(key < query and ids[key] == ids[query])
        of["induction_head"][query][key] = int(1 <= key <= query and ids[key - 1] == ids[query])
    return of


@given(ids=st.lists(st.integers(0, 4), min_size=1, max_size=12), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_a_score_is_the_share_of_all_weight_on_its_pattern(ids: list[int], seed: int) -> None:
    sequence = tokens(ids)
    trace = traced(sequence, sequence, "causal", seed)
    layer = trace.layer(0)
    found = detections(trace, layer)
    for head, (number, name) in product(range(HEADS), enumerate(DETECTORS)):
        weights, pattern = layer.head(head).weights.tolist(), patterns(ids)[name]
        cells = list(product(range(len(ids)), repeat=2))
        on_it = sum(weights[query][key] * pattern[query][key] for query, key in cells)
        assert found[head, number] == pytest.approx(on_it / sum(map(sum, weights)), abs=2e-6)


def test_weight_that_a_sink_takes_is_no_weight_on_a_key() -> None:
    ones = np.ones((1, 4, 2), np.float32)
    sequence = tokens([0, 1, 0, 1])
    plain = trace_of(layer_of(ones, ones, mask="causal"), queries=sequence, keys=sequence)
    sunk = trace_of(
        layer_of(ones, ones, mask="causal", sinks=np.full(1, 2.0, np.float32)), queries=sequence, keys=sequence
    )
    weights = sunk.layer(0).head(0).weights
    assert weights.sum() < 3.5
    (found,) = detections(sunk, sunk.layer(0))
    assert found[DETECTORS.index("previous_token_head")] == pytest.approx(np.diag(weights, -1).sum() / weights.sum())
    assert not np.allclose(found, detections(plain, plain.layer(0)))


def test_two_sequences_have_no_earlier_tokens() -> None:
    trace = traced(tokens([0, 1]), tokens([0, 1, 2]), "full")
    assert np.isnan(detections(trace, trace.layer(0))).all()


def test_a_query_that_sees_later_keys_is_cautioned_about() -> None:
    sequence = tokens([0, 1, 2])
    assert not list(cautions(traced(sequence, sequence, "causal")))
    assert "a test of causal models" in next(cautions(traced(sequence, sequence, "full")))


def test_the_test_has_the_metrics_and_the_detectors(tiny_llama: str) -> None:
    found = attncli.heads(induction=True, model=tiny_llama)
    assert (found.sentences, found.is_test, found.names) == (10, True, (*NAMES, *DETECTORS))
    tokens_read, repeated = found.tokens[0], (found.tokens[0] - 1) // 2
    for head in found.heads:
        # Every second token comes once before, so that the mean over these rows is what they have of all weight.
        share = repeated / tokens_read
        assert head.metrics["induction_head"] == pytest.approx(head.metrics["induction"] * share, abs=1e-6)
        assert head.counts["induction_head"] == 10
    assert not attncli.heads("time flies", model=tiny_llama).is_test
