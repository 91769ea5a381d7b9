"""Heads as a person sees them: every head in its place whatever the model's size, in one screen."""

import math

import pytest
from running import plain, printed
from views import report_of

from attncli.analysis.heads import HeadReport, HeadSummary
from attncli.analysis.metric_names import OF_ANY_TEXT as NAMES
from attncli.render.heads import head_parts, table_parts
from attncli.render.palette import Palette
from attncli.trace.trace import Provenance


@pytest.mark.parametrize(("heads", "size"), [(4, 14), (12, 6), (30, 2)])
def test_without_colour_a_label_is_a_word_or_a_letter(heads: int, size: int) -> None:
    report = report_of(1, heads)
    lines = printed(head_parts(report, (), Palette(), 80, 60), Palette(), 80).splitlines()
    drawn = next(line for line in lines if line.startswith("L0"))[3:].ljust(size * heads)
    for place, head in enumerate(report.heads):
        word = drawn[size * place :][:size].split()[0]
        name = head.labels[0].name if head.labels else "·"
        assert name.startswith({"k": "sink", "e": "separator"}.get(word, word))


def test_a_map_has_no_range_of_infinities() -> None:
    values = [math.inf, 1.0, 2.0, None]
    heads = tuple(
        HeadSummary(0, "self", index, dict.fromkeys(NAMES, value), dict.fromkeys(NAMES), dict.fromkeys(NAMES, 1))
        for index, value in enumerate(values)
    )
    found = HeadReport(Provenance("file"), 1, (3, 3), ("full",), len(heads), heads)
    shown = printed(head_parts(found, ["max_score"], Palette(), None), Palette(), 200)
    assert "max_score 1.00–2.00 score" in shown
    assert "– not defined   I infinite" in shown
    assert "max_score: the largest allowed score" in shown


def test_weights_have_one_scale_that_ends_at_1_and_other_metrics_say_their_range() -> None:
    report = report_of(2, 3)
    shown = plain(
        printed(head_parts(report, ["sink", "entropy"], Palette("truecolor"), 100), Palette("truecolor"), 100)
    )
    (ramp,) = [line for line in shown.splitlines() if line.startswith("mean weight")]
    assert ramp.split()[2] == "0"
    assert ramp.split()[-1] == "1"
    entropies = [head.metrics["entropy"] or 0 for head in report.heads]
    assert f"entropy {min(entropies):.2f}–{max(entropies):.2f} nats" in shown
    table = printed(table_parts(report, "sink", Palette(), 120), Palette(), 120)
    assert table.splitlines()[1].split()[:4] == ["layer", "head", "label", "sink"]
