"""Heads as a person sees them: every head in its place whatever the model's size, in one screen."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.cells import cell_len
from running import plain, printed

from attncli.analysis.heads import HeadReport, HeadSummary
from attncli.analysis.labels import LABELS, Label, labels_of
from attncli.analysis.metric_names import NAMES as ALL
from attncli.analysis.metric_names import OF_ANY_TEXT as NAMES
from attncli.analysis.metric_names import OF_PICTURES
from attncli.render.heads import head_parts, table_parts
from attncli.render.palette import Palette
from attncli.trace.trace import Provenance

BASELINES = {**dict.fromkeys(NAMES, 0.1), "distance": 4.0, "effective_keys": 10.0}


def report_of(layers: int, heads: int) -> HeadReport:
    """A model whose heads do what chance says."""
    draw = np.random.default_rng(0)
    found = []
    for place in range(layers * heads):
        metrics = dict(zip(NAMES, (draw.random(len(NAMES)) ** 3).tolist(), strict=True))
        labels = labels_of(metrics, BASELINES, {}) if place % 9 else ()
        layer, head = divmod(place, heads)
        numbers = metrics, dict.fromkeys(NAMES), dict.fromkeys(NAMES, 1)
        found.append(HeadSummary(layer, "self", head, *numbers, labels))
    return HeadReport(Provenance("file"), 1, (9, 9), ("causal",), len(found), tuple(found))


@pytest.mark.parametrize(("width", "height"), [(80, 23), (120, 39), (200, 59)])
@pytest.mark.parametrize(("layers", "heads"), [(1, 4), (4, 4), (12, 12), (30, 9), (32, 32)])
def test_every_head_has_its_cell_on_one_screen(layers: int, heads: int, width: int, height: int) -> None:
    palette = Palette("truecolor")
    report = report_of(layers, heads)
    parts = head_parts(report, (), palette, width, height)
    lines = plain(printed(parts, palette, width)).splitlines()
    assert len(lines) + len(parts) - 1 <= height  # blank lines between the parts
    assert all(cell_len(line) <= width for line in lines)
    start = next(number for number, line in enumerate(lines) if line.startswith(("L0 ", "L0  ")))
    rows = [line for line in lines[start : start + layers] if line.startswith("L")]
    is_half = len(rows) < layers
    assert len(rows) == (-(-layers // 2) if is_half else layers)
    if is_half:
        assert all(sum(row.count(half) for half in "▀▄ ") >= heads for row in rows)
    counts = {name: int(count) for line in lines for name, count in re.findall(r"\b([a-z]+) +(\d+)  L\d", line)}
    labels = [head.labels[0].name if head.labels else "mixed" for head in report.heads]
    assert counts == {name: labels.count(name) for name in (*LABELS, "mixed") if name in labels}


@pytest.mark.parametrize(("width", "height"), [(80, 23), (120, 39)])
def test_heads_that_look_at_pictures_have_maps_of_their_own_metrics(width: int, height: int) -> None:
    report = report_of(4, 4)
    seen = dict(zip(OF_PICTURES, (0.9, 1.0, 0.75, 0.1), strict=True))
    labels = labels_of({**report.heads[0].metrics, **seen}, {**BASELINES, "region": 0.02}, {})
    heads = tuple(replace(head, metrics={**head.metrics, **seen}, labels=labels) for head in report.heads)
    parts = head_parts(replace(report, heads=heads, names=ALL), (), Palette("truecolor"), width, height)
    lines = plain(printed(parts, Palette("truecolor"), width)).splitlines()
    assert len(lines) + len(parts) - 1 <= height
    assert any(line.startswith("region ") and "image" in line for line in lines)
    text = " ".join(" ".join(lines).split())
    assert "localization 16 L0H0" in text
    assert "and localization 0.6. --pairs FILE tests which heads find the right place." in text


def test_rare_labels_name_all_their_heads_beside_a_tall_grid() -> None:
    labels = [(Label("induction", 0.9 - place / 100, 0.1, 0.9 - place / 100),) for place in range(6)]
    labels += [(Label("sink", 0.5, 0.1, 0.45),)] * 264
    report = report_of(30, 9)
    heads = tuple(replace(head, labels=own) for head, own in zip(report.heads, labels, strict=True))
    palette = Palette("truecolor")
    parts = head_parts(replace(report, heads=heads), (), palette, 120, 39)
    shown = plain(printed(parts, palette, 120))
    (line,) = [number for number, text in enumerate(shown.splitlines()) if " induction  " in text]
    below = " ".join(shown.splitlines()[line : line + 2])
    assert all(f"L0H{place}" in below for place in range(6))
    assert "264" in shown
    assert "…" in shown
    assert "gain: 0" not in shown  # whose column there is no room for


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
