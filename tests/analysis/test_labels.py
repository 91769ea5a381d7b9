"""Labels: what the uniform head gets, and which names follow from how far a head is from it."""

import numpy as np
import pytest
from metrics_by_hand import HEADS, tokens
from traces import layer_of, trace_of

from attncli.analysis.heads import survey
from attncli.analysis.labels import LABELS, labels_of, labels_of_heads
from attncli.analysis.metric_names import NAMES
from attncli.analysis.metrics import by_name, trace_metrics
from attncli.masks.expressions import ArrayMask
from attncli.trace.trace import Trace
from attncli.trace.view import View


def test_masks_that_differ_by_head_have_a_uniform_head_each() -> None:
    allowed = np.tril(np.ones((HEADS, 5, 5), bool))
    allowed[1] = np.eye(5, dtype=bool)
    alike = np.ones((HEADS, 5, 2), np.float32)
    layer = layer_of(alike, alike, mask=allowed)
    trace = trace_of(layer, queries=tokens([*range(5)]), keys=tokens([*range(5)]))
    assert isinstance(layer.mask, ArrayMask)
    found = [by_name(NAMES, values) for values in trace_metrics(trace).uniform]
    assert [one["self"] for one in found] == [pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5) / 5), 1.0]
    # Each head is held against its own: where the mask leaves no choice, a head does nothing by itself.
    assert [[label.name for label in head.labels] for head in survey([trace], View()).heads] == [["broad"], []]


def numbers(**values: float) -> dict[str, float | None]:
    return {name: values.get(name) for name in NAMES}


@pytest.mark.parametrize(
    ("metrics", "baselines", "expected"),
    [
        ({"previous": 0.46}, {"previous": 0.1}, [("previous", 0.4)]),  # (0.46 − 0.1) / (1 − 0.1)
        ({"sink": 0.7, "separator": 0.9}, {"sink": 0.5, "separator": 0.5}, [("separator", 0.8), ("sink", 0.4)]),
        (
            {"duplicate": 1.0, "distance": 1.0},
            {"duplicate": 0.2, "distance": 2.0},
            [("duplicate", 1.0), ("local", 0.5)],
        ),
        (
            {"next": 0.8, "distance": 0.5},
            {"next": 0.2, "distance": 2.0},
            [("next", 0.75)],
        ),  # which says that it is local
        ({"effective_keys": 4.6}, {"effective_keys": 10.0}, [("broad", 0.4)]),  # (4.6 − 1) / (10 − 1)
        ({"self": 1.0, "effective_keys": 1.0}, {"self": 1.0, "effective_keys": 1.0}, []),  # a mask leaves no choice
        ({"previous": 0.9}, {}, []),  # not defined
    ],
    ids=str,
)
def test_a_label_says_how_much_of_the_way_from_the_baseline_is_gone(
    metrics: dict[str, float], baselines: dict[str, float], expected: list[tuple[str, float]]
) -> None:
    found = labels_of(numbers(**metrics), numbers(**baselines), {})
    assert [label.name for label in found] == [name for name, _ in expected]
    assert [label.gain for label in found] == pytest.approx([gain for _, gain in expected])


def test_one_position_for_each_head_has_its_label() -> None:
    """A head for each pattern: the scores are the pattern, so that all weight is there."""
    ids = [9, 1, 2, 3, 4, 8, 1, 2, 3, 4, 7]
    count, special = len(ids), frozenset({9, 7})
    places = np.arange(count)
    earlier = (np.array(ids)[:, None] == np.array(ids)) & (places < places[:, None])
    patterns = {
        "previous": places == places[:, None] - 1,
        "next": places == places[:, None] + 1,
        "self": places == places[:, None],
        "sink": np.broadcast_to(places == 0, (count, count)),
        "duplicate": earlier,
        "induction": np.roll(earlier, 1, axis=1),
        "separator": np.broadcast_to(places == count - 1, (count, count)),
        "local": abs(places - places[:, None]) <= 1,
        "broad": np.zeros((count, count), bool),
    }
    scores = np.stack([np.where(pattern, 30.0, 0.0) for pattern in patterns.values()]).astype(np.float32)
    keys = np.broadcast_to(np.eye(count, dtype=np.float32), scores.shape)
    sequence = tokens(ids, special)
    trace = trace_of(layer_of(scores, keys), queries=sequence, keys=sequence)
    found = survey([trace], View())
    assert [head.labels[0].name for head in found.heads] == list(patterns)
    assert [*patterns] == [name for name in LABELS if name not in ("localization", "visual sink")]  # of pictures
    for head in found.heads[:3]:
        assert head.labels[0].gain == pytest.approx(1.0, abs=1e-5)


# --- too few query rows ----------------------------------------------------------------------------------------------


def sentence_of(scores: np.ndarray, mask: str) -> Trace:
    keys = np.broadcast_to(np.eye(scores.shape[-1], dtype=np.float32), scores.shape)
    text = tokens([*range(scores.shape[-1])])
    return trace_of(layer_of(scores.astype(np.float32), keys, mask=mask), queries=text, keys=text)


def patterns(count: int) -> np.ndarray:
    """Scores of heads that attend to the first position, to themselves, to the one before, and alike."""
    places = np.arange(count)
    back = places[:, None] - places
    first = np.broadcast_to(places == 0, back.shape)
    return 30.0 * np.stack([first, back == 0, back == 1, np.zeros(back.shape, bool)])


@pytest.mark.parametrize(
    ("mask", "count", "is_named"),
    [("causal", 2, False), ("causal", 3, False), ("causal", 4, False), ("causal", 5, True),
     ("full", 2, False), ("full", 3, False), ("full", 4, True)],
)  # fmt: skip
def test_a_head_of_a_short_sentence_has_no_label(mask: str, count: int, is_named: bool) -> None:
    trace = sentence_of(patterns(count), mask)
    named = [["sink"], ["self"], ["previous"], ["broad"]]
    if mask == "full":  # the first position has none before it, and looks at all alike
        named[2] = ["previous"]
    report = survey([trace], View())
    assert [[label.name for label in head.labels] for head in report.heads] == (named if is_named else [[]] * 4)
    assert (report.unsure > 0) == (not is_named)
    assert [*labels_of_heads(trace).values()] == [head.labels for head in report.heads]
