"""Every metric of a head against a plain loop, over random layers, masks and token ids."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metrics_by_hand import HEADS, MASKS, NAMES, OF_ONE_SEQUENCE, SCALE, WIDTH, agree, by_hand, measured, tokens, traced
from traces import layer_of, trace_of

from attncli import attention
from attncli.analysis import NAMES as ALL
from attncli.analysis.metrics import by_name as named
from attncli.analysis.metrics import head_metrics, trace_metrics
from attncli.masks.expressions import ArrayMask
from attncli.trace.layer import LayerTrace
from attncli.trace.view import View


def by_name(names: list[str], values: np.ndarray) -> dict[str, float | None]:
    assert np.isnan(values[len(names) :]).all()
    return named(names, values[: len(names)])


some_ids = st.lists(st.integers(0, 3), min_size=1, max_size=8)
some_special = st.frozensets(st.integers(0, 3), max_size=2)


@given(
    ids=some_ids, special=some_special, mask=st.sampled_from([*MASKS, "cells"]), seed=st.integers(0, 99), data=st.data()
)
@settings(max_examples=100)
def test_a_plain_loop_counts_the_same(ids: list[int], special: frozenset[int], mask: str, seed: int, data: Any) -> None:
    sequence = tokens(ids, special)
    # A mask of cells is another one for each head, and leaves some rows without a key.
    allowed = np.random.default_rng(seed).random((HEADS, len(ids), len(ids))) < 0.3
    trace = traced(sequence, sequence, ArrayMask(allowed) if mask == "cells" else mask, seed)
    rows = data.draw(st.none() | st.lists(st.integers(0, len(ids) - 1), unique=True, max_size=4))
    for head in range(HEADS):
        agree(measured(trace, head, rows), by_hand(trace, head, rows))
    uniform = by_name(NAMES, trace_metrics(trace).uniform[0])
    agree(uniform, by_hand(trace, 0, is_uniform=True) | {"max_score": None})  # it has no scores


@given(
    query_ids=some_ids, key_ids=some_ids, special=some_special, mask=st.sampled_from(["full", "causal", "keys(1,3)"])
)
@settings(max_examples=40)
def test_between_two_sequences(query_ids: list[int], key_ids: list[int], special: frozenset[int], mask: str) -> None:
    query_tokens, key_tokens = tokens([id_ + 10 for id_ in query_ids]), tokens(key_ids, special)
    trace = traced(query_tokens, key_tokens, mask)
    agree(measured(trace, 0), by_hand(trace, 0))
    assert all(measured(trace, 0)[name] is None for name in OF_ONE_SEQUENCE)


IDS = [0, 1, 2, 0, 3, 1, 1, 0]
PER_HEAD = ArrayMask(np.random.default_rng(5).random((HEADS, len(IDS), len(IDS))) < 0.4)


@pytest.fixture
def layers() -> tuple[LayerTrace, ...]:
    random = np.random.default_rng(3)

    def layer(mask: Any, number: int, groups: int = HEADS, **fields: Any) -> LayerTrace:
        q = random.standard_normal((HEADS, len(IDS), WIDTH), dtype=np.float32)
        k = random.standard_normal((groups, len(IDS), WIDTH), dtype=np.float32)
        return layer_of(q, k, mask=mask, layer=number, **{"scale": SCALE, **fields})

    bias = random.standard_normal((1, len(IDS), len(IDS)), dtype=np.float32)
    kinds: list[tuple[Any, dict[str, Any]]] = [
        ("causal", {}), ("causal", {"heads": (1,)}), ("window(3)", {}), ("causal", {"scale": 2.0}), ("causal", {}),
        (PER_HEAD, {}), (PER_HEAD, {"heads": (1, 0)}), ("causal", {"bias": bias}), ("causal", {"softcap": 2.0}),
        ("causal", {"groups": 1}), ("causal", {"groups": 1, "heads": (1, 0)}), ("window(3)", {}), ("pad(left=2)", {}),
        ("causal", {"sinks": np.ones(HEADS, np.float32)}), ("causal", {"fill": -10_000.0}), ("full", {"kind": "cross"}),
    ]  # fmt: skip
    return tuple(layer(mask, number, **fields) for number, (mask, fields) in enumerate(kinds))


@pytest.mark.parametrize(("cells", "queries"), [(1, ()), (40, (0, 3, 6)), (2**20, ())])
def test_all_heads_at_once_are_what_each_is_by_itself(
    monkeypatch: pytest.MonkeyPatch, layers: tuple[LayerTrace, ...], cells: int, queries: tuple[int, ...]
) -> None:
    sequence = tokens(IDS, frozenset({0, 4}))
    trace = trace_of(*layers, queries=sequence, keys=sequence)
    alone = [
        (trace.only(layer, (head,)), head_metrics(trace, layer, layer.head(head, queries or None)))
        for layer in layers
        for head in layer.heads
    ]
    monkeypatch.setattr(attention, "CELLS", cells)
    found = trace_metrics(trace, View(queries=queries))
    assert found.heads.shape == found.uniform.shape == (len(alone), len(ALL))
    for (each, metrics), values, uniform, rows in zip(alone, *found, strict=True):
        agree(by_name(NAMES, values), metrics)
        own = trace_metrics(each, View(queries=queries))
        agree(by_name(NAMES, uniform), by_name(NAMES, own.uniform[0]))
        assert np.array_equal(rows, own.rows[0], equal_nan=True)


def test_what_cannot_be_computed_is_none_and_not_zero() -> None:
    sequence = tokens([0, 1, 0], frozenset({1}))
    trace = traced(sequence, sequence, "full")
    trace.layer(0).q[:] = math.nan
    assert measured(trace, 0) == dict.fromkeys(NAMES)
