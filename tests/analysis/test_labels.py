"""Labels: what the uniform head gets, and which names follow from how far a head is from it."""

import numpy as np
import pytest
from metrics_by_hand import HEADS, tokens
from traces import layer_of, trace_of

from attncli.analysis import NAMES
from attncli.analysis.heads import survey
from attncli.analysis.metrics import LABELS, by_name, labels_of, labels_of_heads, trace_metrics
from attncli.trace.trace import Trace
from attncli.trace.view import View


def test_masks_that_differ_by_head_have_a_uniform_head_each() -> None:
    allowed = np.tril(np.ones((HEADS, 5, 5), bool))
    allowed[1] = np.eye(5, dtype=bool)
    alike = np.ones((HEADS, 5, 2), np.float32)
    layer = layer_of(alike, alike, mask=allowed)
    trace = trace_of(layer, queries=tokens([*range(5)]), keys=tokens([*range(5)]))
    found = [by_name(NAMES, values) for values in trace_metrics(trace).uniform]
    assert [one["self"] for one in found] == [pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5) / 5), 1.0]
    # Each head is held against its own: where the mask leaves no choice, a head does nothing by itself.
    assert [[label.name for label in head.labels] for head in survey([trace], View()).heads] == [["broad"], []]


def numbers(**values: float) -> dict[str, float | None]:
    return {name: values.get(name) for name in NAMES}


@pytest.mark.parametrize(("metrics", "baselines", "expected"), [
    ({"previous": 0.46}, {"previous": 0.1}, [("previous", 0.4)]),  # (0.46 − 0.1) / (1 − 0.1)
    ({"sink": 0.7, "separator": 0.9}, {"sink": 0.5, "separator": 0.5}, [("separator", 0.8), ("sink", 0.4)]),
    ({"duplicate": 1.0, "distance": 1.0}, {"duplicate": 0.2, "distance": 2.0}, [("duplicate", 1.0), ("local", 0.5)]),
    ({"next": 0.8, "distance": 0.5}, {"next": 0.2, "distance": 2.0}, [("next", 0.75)]),  # which says that it is local
    ({"effective_keys": 4.6}, {"effective_keys": 10.0}, [("broad", 0.4)]),  # (4.6 − 1) / (10 − 1)
    ({"self": 1.0, "effective_keys": 1.0}, {"self": 1.0, "effective_keys": 1.0}, []),  # a mask leaves no choice
    ({"previous": 0.9}, {}, []),  # not defined
], ids=str)  # fmt: skip
def test_a_label_has_a_gain(
    metrics: dict[str, float], baselines: dict[str, float], expected: list[tuple[str, float]]
) -> None:
    found = labels_of(numbers(**metrics), numbers(**baselines), {})
    assert [label.name for label in found] == [name for name, _ in expected]
    assert [label.gain for label in found] == pytest.approx([gain for _, gain in expected])


def patterns(ids: list[int]) -> dict[str, np.ndarray]:
    """Which key each query of a head attends to, by the label that the head gets; the last position is special."""
    count = len(ids)
    places = np.arange(count)
    back = places[:, None] - places
    earlier = (np.array(ids)[:, None] == np.array(ids)) & (back > 0)
    return {
        "previous": back == 1, "next": back == -1, "self": back == 0,
        "sink": np.broadcast_to(places == 0, back.shape), "duplicate": earlier,
        "induction": np.roll(earlier, 1, axis=1), "separator": np.broadcast_to(places == count - 1, back.shape),
        "local": abs(back) <= 1, "broad": np.zeros(back.shape, bool),
    }  # fmt: skip


def trace_with(heads: list[np.ndarray], ids: list[int], mask: str = "full", special: tuple[int, ...] = ()) -> Trace:
    scores = 30 * np.stack(heads).astype(np.float32)
    keys = np.broadcast_to(np.eye(len(ids), dtype=np.float32), scores.shape)
    sequence = tokens(ids, frozenset(special))
    return trace_of(layer_of(scores, keys, mask=mask), queries=sequence, keys=sequence)


def test_one_position_for_each_head_has_its_label() -> None:
    ids = [9, 1, 2, 3, 4, 8, 1, 2, 3, 4, 7]
    expected = patterns(ids)
    found = survey([trace_with([*expected.values()], ids, special=(9, 7))], View())
    assert [head.labels[0].name for head in found.heads] == list(expected)
    assert [*expected] == [name for name in LABELS if name not in ("localization", "visual sink")]  # of pictures
    for head in found.heads[:3]:
        assert head.labels[0].gain == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(("mask", "count", "is_named"), [
    ("causal", 2, False), ("causal", 4, False), ("causal", 5, True), ("full", 3, False), ("full", 4, True),
])  # fmt: skip
def test_a_head_of_a_sentence_with_too_few_rows_has_no_label(mask: str, count: int, is_named: bool) -> None:
    names, ids = ["sink", "self", "previous", "broad"], [*range(count)]
    trace = trace_with([patterns(ids)[name] for name in names], ids, mask)
    report = survey([trace], View())
    named = [[name] for name in names] if is_named else [[]] * 4
    assert [[label.name for label in head.labels] for head in report.heads] == named
    assert (report.unsure > 0) == (not is_named)
    assert [*labels_of_heads(trace).values()] == [head.labels for head in report.heads]
