"""Heads as a person sees them: every head in its place whatever the model's size, in one screen."""

import math
import re

import pytest
from running import printed
from views import report_of

from attncli.analysis import OF_ANY_TEXT as NAMES
from attncli.analysis.heads import HeadReport, HeadSummary
from attncli.render.heads import head_parts, table_parts
from attncli.render.palette import Palette
from attncli.trace.trace import Provenance


@pytest.mark.parametrize(("heads", "size"), [(4, 14), (12, 6), (30, 2)])
def test_without_colour_a_label_is_a_word_or_a_letter(heads: int, size: int) -> None:
    report = report_of(1, heads)
    lines = printed(head_parts(report, Palette(), 80, 20), Palette(), 80).splitlines()
    drawn = next(line for line in lines if line.startswith("L0"))[3:].ljust(size * heads)
    for place, head in enumerate(report.heads):
        word = drawn[size * place :][:size].split()[0]
        name = head.labels[0].name if head.labels else word
        assert head.labels or word in {"mixed", "·"}
        assert name.startswith({"k": "sink", "e": "separator"}.get(word, word))


def test_a_metric_has_its_own_column_and_the_one_that_ranks_stands_first() -> None:
    values = [math.inf, 1.0, 2.0, None]
    heads = tuple(
        HeadSummary(0, "self", index, dict.fromkeys(NAMES, value), dict.fromkeys(NAMES), dict.fromkeys(NAMES, 1))
        for index, value in enumerate(values)
    )
    found = HeadReport(Provenance("file"), 1, (3, 3), ("full",), len(heads), heads)
    shown = printed(table_parts(found, "sink", Palette(), 120), Palette(), 120)
    assert shown.splitlines()[1].split()[:4] == ["layer", "head", "label", "sink"]
    assert [line.split()[3] for line in shown.splitlines()[2:6]] == ["inf", "1.00", "2.00", "–"]
    assert "mixed" in shown
    assert "– not defined for this sentence" in shown


@pytest.mark.parametrize(("width", "height"), [(60, 23), (120, 39), (200, 59)])
def test_numbers_fill_what_labels_leave_and_count_the_other_heads(width: int, height: int) -> None:
    shown = printed(head_parts(report_of(4, 4), Palette(), width, height), Palette(), width)
    rows = [line for line in shown.splitlines() if re.match(r" *\d +\d  (\w|·)", line)]
    more = re.search(r"^(\d+) more$", shown, re.MULTILINE)
    assert (len(rows) + int(more[1] if more else 0)) == (0 if height < 30 else 16)
