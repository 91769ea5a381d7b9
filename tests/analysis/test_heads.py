"""Means and deviations over sentences against Python's own statistics, and the order of the heads."""

import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metrics_by_hand import HEADS, MASKS, agree, by_hand, mean, tokens, traced

import attncli
from attncli.analysis import OF_ANY_TEXT as NAMES
from attncli.analysis.heads import HeadReport, HeadSummary, survey
from attncli.errors import InputError, UsageError
from attncli.trace.trace import Provenance
from attncli.trace.view import View

some_ids = st.lists(st.integers(0, 3), min_size=1, max_size=8)


@given(
    sentences=st.lists(st.tuples(some_ids, st.sampled_from(MASKS), st.integers(0, 99)), min_size=1, max_size=5),
    special=st.frozensets(st.integers(0, 3), max_size=2),
)
@settings(max_examples=60)
def test_means_and_deviations_of_heads(sentences: list[tuple[list[int], str, int]], special: frozenset[int]) -> None:
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
        attncli.heads("a b").ranked("x")
    with pytest.raises(UsageError, match="num_heads does not apply to a trace"):
        attncli.heads(attncli.inspect("a b"), num_heads=2)
    with pytest.raises(InputError, match="no sentence"):
        attncli.heads([])
    with pytest.raises(UsageError, match="differ in their layers and heads"):
        survey([attncli.inspect("a b", num_heads=heads, d_model=8) for heads in (1, 2)], View())
