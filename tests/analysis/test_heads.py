"""Means and deviations over sentences against Python's own statistics, and the order of the heads."""

import gc
import statistics
import tracemalloc
from collections.abc import Iterator

import jaxtyping
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metrics_by_hand import HEADS, MASKS, agree, by_hand, mean, tokens, traced
from traces import layer_of, trace_of

import attncli
from attncli import attention
from attncli.analysis.heads import HeadReport, HeadSummary, survey
from attncli.analysis.metric_names import NAMES
from attncli.errors import InputError, UsageError
from attncli.trace.trace import Provenance
from attncli.trace.view import View

some_ids = st.lists(st.integers(0, 3), min_size=1, max_size=8)


@given(
    sentences=st.lists(st.tuples(some_ids, st.sampled_from(MASKS), st.integers(0, 99)), min_size=1, max_size=5),
    special=st.frozensets(st.integers(0, 3), max_size=2),
)
@settings(max_examples=60)
def test_every_head_has_the_mean_and_the_deviation_of_a_plain_loop(
    sentences: list[tuple[list[int], str, int]], special: frozenset[int]
) -> None:
    traces = []
    for ids, mask, seed in sentences:
        sequence = tokens(ids, special)
        traces.append(traced(sequence, sequence, mask, seed))
    found = survey(traces, View())
    assert (found.sentences, found.measured) == (len(sentences), HEADS)
    for head, summary in enumerate(found.heads):
        assert (summary.layer, summary.kind, summary.head) == (0, "self", head)
        plain = [by_hand(trace, head) for trace in traces]
        defined = {name: [one[name] for one in plain if one[name] is not None] for name in NAMES}
        agree(dict(summary.metrics), {name: mean(values) for name, values in defined.items()})
        for name, values in defined.items():
            assert summary.counts[name] == len(values)
            spread = statistics.stdev(values) if len(values) > 1 else None
            assert summary.std[name] == (None if spread is None else pytest.approx(spread, rel=1e-3, abs=1e-5)), name


def test_heads_that_share_keys_and_a_mask_for_each_head_are_told_apart() -> None:
    random = np.random.default_rng(0)
    q = 2 * random.standard_normal((6, 5, 3), dtype=np.float32)
    k, v = random.standard_normal((2, 2, 5, 3), dtype=np.float32)
    sequence = tokens([0, 1, 2, 0, 1])
    chosen = (1, 4, 5, 0)  # not in order, and of both groups
    layer = layer_of(q, k, v, "causal", 0.7, heads=chosen)
    trace = trace_of(layer, queries=sequence, keys=sequence)
    whole = trace_of(
        layer_of(q, k.repeat(3, axis=0), v.repeat(3, axis=0), "causal", 0.7), queries=sequence, keys=sequence
    )
    for summary, head in zip(survey([trace], View()).heads, chosen, strict=True):
        assert summary.head == head
        agree(dict(summary.metrics), by_hand(whole, head))


def test_long_sentences_in_blocks_are_what_short_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    sequence = tokens([0, 1, 2, 3, 0, 1, 2, 3, 1, 1])
    trace = traced(sequence, sequence, "causal & ~keys(0,2)")
    whole = survey([trace], View())
    for cells in (1, 20, 120):
        monkeypatch.setattr(attention, "CELLS", cells)
        for one, other in zip(survey([trace], View()).heads, whole.heads, strict=True):
            agree(dict(one.metrics), dict(other.metrics))


def test_some_rows_alone() -> None:
    sequence = tokens([0, 1, 2, 0, 1])
    trace = traced(sequence, sequence, "causal")
    for head, summary in enumerate(survey([trace], View(queries=("w1", "-2"))).heads):
        agree(dict(summary.metrics), by_hand(trace, head, [1, 4, 3]))


# --- the order ---------------------------------------------------------------------------------------------


def ranked(values: list[float | None], *, reverse: bool = False, top: int | None = None) -> list[int]:
    heads = [HeadSummary(0, "self", head, dict.fromkeys(NAMES, value), {}, {}) for head, value in enumerate(values)]
    found = HeadReport(Provenance("toy"), 1, (1, 1), (), len(heads), tuple(heads))
    return [head.head for head in found.ranked("sink", reverse=reverse, top=top).heads]


def test_the_highest_come_first_and_what_is_undefined_last_either_way() -> None:
    values = [None, 0.5, -1.0, 0.5, None, 2.0, 0.0]
    assert ranked(values) == [5, 1, 3, 6, 2, 0, 4]
    assert ranked(values, reverse=True) == [2, 6, 1, 3, 5, 0, 4]
    assert ranked(values, top=2) == [5, 1]
    assert ranked(values, reverse=True, top=99) == [2, 6, 1, 3, 5, 0, 4]


# --- the library's call ------------------------------------------------------------------------------------


def test_texts_and_a_trace_give_the_same() -> None:
    one = attncli.heads("the cat saw the dog", num_heads=2)
    assert one == attncli.heads(attncli.inspect("the cat saw the dog", num_heads=2))
    assert one == attncli.heads(["the cat saw the dog"], num_heads=2)
    assert len(one.heads) == 2
    two = attncli.heads(iter(["the cat saw the dog", "a b"]), num_heads=2)
    assert (two.sentences, two.tokens) == (2, (2, 5))
    assert "vocab_size" not in two.source.details  # another one in each
    assert attncli.heads("a b c", queries=[-1]).heads[0].metrics["next"] is None
    for named in ("saw", 2, iter(["saw"])):
        assert attncli.heads("the cat saw the dog", queries=named) == attncli.heads(
            "the cat saw the dog", queries=["saw"]
        )


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="no metric 'x'; expected one of entropy"):
        attncli.heads("a b").ranked("x")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="num_heads does not apply to a trace"):
        attncli.heads(attncli.inspect("a b"), num_heads=2)
    with pytest.raises(InputError, match="no sentence"):
        attncli.heads([])
    with pytest.raises(InputError, match="sentence 2"):
        attncli.heads(["a b", ""])
    with pytest.raises(UsageError, match="not the same layers and heads"):
        survey([attncli.inspect("a b", num_heads=heads, d_model=8) for heads in (1, 2)], View())


def test_memory_does_not_grow_with_the_number_of_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    # The check of shapes remembers those that it has seen.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)

    def peak(count: int) -> int:
        def texts() -> Iterator[str]:
            for number in range(count):
                if number % 20 == 0:
                    gc.collect()  # Python keeps the memory of freed tuples until then
                yield f"w{number} flies like w{number} and w{number % 7}"

        tracemalloc.start()
        attncli.heads(texts(), num_heads=2, d_model=4)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(10)  # what is imported and cached stays
    assert peak(200) < 2 * peak(20)
