"""One cell taken apart: every stage against a plain loop, sums that are sums, and a page that hides nothing."""

import json
import math
import re
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from running import plain, printed
from traces import layer_of, tokens_of, trace_of, watched
from views import TIERS

import attncli
from attncli.analysis.cell import AttentionRow
from attncli.analysis.warnings import warnings_of_rows
from attncli.analysis.why import explain, why
from attncli.formats.documents import write_why
from attncli.render.bars import TableFormat, bar, signed_bar
from attncli.render.palette import Palette, Scale
from attncli.render.why import WhyPage
from attncli.trace.trace import Trace
from attncli.trace.view import Ramp

SENTENCE = "time flies like an arrow"


def toy(**options: object) -> Trace:
    return attncli.inspect(SENTENCE, **options)


def drawn(trace: Trace, query: str, key: str | None = None, top: int = 8, palette: Palette = Palette(),  # noqa: B008
          width: int | None = None, precision: int | None = None) -> str:  # fmt: skip
    page = WhyPage(trace, explain(trace, query, key), top, TableFormat(palette, width, precision))
    return plain(printed(page.parts(), palette, width))


def test_the_page_of_a_cell_is_exactly_this() -> None:
    q, k, v = np.array([[[2.0, 1, 0.5]]]), np.array([[[3.0, -2, 0.5]]]), np.array([[[3.0, 4]]])
    layer = layer_of(q, k, v, scale=0.5, bias=np.array([[[-1.0]]]), softcap=2.0, sinks=np.array([0.0]))
    assert drawn(trace_of(layer), "0", "0", top=2, width=60).splitlines()[2:] == [
        "query 0 q0 → key 0 k0 · layer 0 · head 0 of 1",
        "   dim       q        k      q·k",
        "     0  2.0000   3.0000   6.0000  ██████████████████████████",
        "     1  1.0000  -2.0000  -2.0000  ▒▒▒▒▒▒▒▒▒",
        "1 more                    0.2500",
        "   q·k                    4.2500",
        "q·k      4.2500  the sum over 3 dimensions",
        "× scale  2.1250  0.5",
        "+ bias   1.1250  -1.0000",
        "score    1.0197  softcapped, 2·tanh(x / 2); the mask allows",
        "                 it",
        "exp      1.0000  e^(score − 1.0197), minus the row's highest",
        "weight   0.7349  ÷ 1.3607, the row's total, 0.3607 of it the",
        "                 sink's",
        "‖v‖      5.0000  the length of the value",
        "‖w·v‖    3.6745  weight × ‖v‖, the key's contribution",
        "share    1.0000  of the output's length 3.6745",
    ]


def test_bars_have_a_colour_or_a_shade_for_each_sign_and_marks_for_what_is_no_number() -> None:
    for palette in TIERS:
        full = "█"
        assert signed_bar(1.0, 1.0, 9, palette)[0] == full * 9
        assert signed_bar(-7.0, 1.0, 9, palette)[0] == (full if palette.has_color else "▒") * 9
        marks = [(math.nan, "X"), (math.inf, "I"), (-math.inf, "-I")]
        for value, mark in marks:
            assert signed_bar(value, 1.0, 9, palette) == (mark, None)
            assert bar(value, 1.0, 9, palette) == (mark, None)
        assert bar(0.0, 0.0, 9, palette)[0] == ""
        for ramp in get_args(Ramp):
            text, style = bar(0.25, 0.5, 8, palette, ramp)
            assert text == full * 4  # whatever the ramp
            cell = palette.cells(np.array([[0.25]]), np.ones((1, 1), bool), Scale.up_to(1.0, ramp), 1)[0][0][1]
            assert (style and style.color) == (cell and cell.bgcolor)
        assert (signed_bar(1.0, 1.0, 9, palette)[1] == signed_bar(-1.0, 1.0, 9, palette)[1]) != palette.has_color


# --- masked, blind, NaN, unknown -------------------------------------------------------------------------------


def test_a_masked_cell_has_its_score_and_no_weight() -> None:
    (cell,) = why(SENTENCE, query="time", key="arrow", head=0)
    assert (cell.allowed, cell.weight, cell.exponential, cell.masked) == (False, 0, 0, -np.inf)
    assert cell.score == cell.scaled != 0
    shown = drawn(attncli.inspect(SENTENCE, head=0), "time", "arrow")
    assert re.search(rf"score +{cell.score:.4f}  masked: the softmax gets -inf instead\n", shown)
    assert re.search(r"weight +0  ÷", shown)


@pytest.mark.parametrize(("fill", "weight"), [(-math.inf, math.nan), (float(np.finfo(np.float32).min), 1 / 3)])
def test_a_row_without_a_key_says_so_and_shows_what_its_softmax_gives(fill: float, weight: float) -> None:
    ones = np.ones((1, 3, 2), np.float32)
    trace = trace_of(layer_of(ones, ones, mask=np.zeros((1, 3, 3), bool), fill=fill))
    (row,) = explain(trace, 1)
    assert isinstance(row, AttentionRow)
    assert row.is_blind
    np.testing.assert_allclose(row.weights, [weight] * 3)
    assert "fully masked" in drawn(trace, "1", "2")
    warnings = list(warnings_of_rows(trace, [row]))
    assert len(warnings) == 1
    assert "the mask leaves no key to query 1 'q1'" in warnings[0]
    assert drawn(trace, "1").count("X") == (3 if math.isnan(weight) else 0)


def test_the_fill_of_a_watched_row_without_a_key_is_not_made_up() -> None:
    trace = trace_of(watched([[-math.inf, -math.inf]], [[0.5, 0.5]], [[False, False]], "cross"))
    (cell,) = explain(trace, 0, 1)
    assert (cell.row.softmax, cell.exponential, cell.weight) == (None, None, 0.5)
    assert "as the model gave it" in drawn(trace, "0", "1")


def test_a_layer_that_gives_its_weights_alone_shows_these_and_says_what_is_left_out() -> None:
    weights = [[0.26894143, 0.73105854, 0.0]]
    trace = trace_of(watched([[1.0, 2.0, -math.inf]], weights, [[True, True, False]], "cross"))
    cells = explain(trace, 0, 1)
    document = json.loads("".join(write_why(trace, cells, None)))
    assert (document["dimensions"], document["dot_product"], document["value_norm"]) == (None, None, None)
    assert (document["score"], document["weight"], document["capture"]) == (2.0, 0.73105854, "weights-only")
    warnings = list(warnings_of_rows(trace, [cells[0].row]))
    assert warnings == [
        "layer 0: q and k are not known; why the scores are what they are is left out",
        "layer 0: its values are not known; what the weights carry is left out",
    ]
    shown = drawn(trace, "0", "1")
    assert "q·k" not in shown
    assert "‖v‖" not in shown
    assert re.search(r"weight +0\.7311  ÷ 1\.3679", shown)
    masked = explain(trace, 0, 2)[0]
    assert (masked.score, masked.weight) == (-np.inf, 0)
    assert "masked, and recorded after the mask" in drawn(trace, "0", "2")


def test_recorded_weights_that_are_not_the_softmax_of_their_scores_are_warned_about() -> None:
    trace = trace_of(watched([[0.0, 0.0]], [[0.25, 0.75]], kind="cross"))
    assert list(warnings_of_rows(trace, explain(trace, 0)))[-1] == (
        "layer 0: the weights of head 0 differ from the softmax of its scores by 2.5e-01"
    )


@pytest.mark.parametrize(("width", "height"), [(80, 21), (120, 37), (200, 57)])
@pytest.mark.parametrize(("key", "heads"), [("flies", "1"), (None, "1"), ("flies", "all"), (None, "all")])
def test_a_page_fits_its_screen_under_its_headline(width: int, height: int, key: str | None, heads: str) -> None:
    trace = attncli.inspect(SENTENCE, model="demo", layer="all" if heads == "all" else 1, head=heads)
    for palette in (Palette("truecolor"), Palette()):
        page = WhyPage(trace, explain(trace, "arrow", key), None, TableFormat(palette, width), height)
        parts = page.parts()
        lines = plain(printed(parts, palette, width)).splitlines()
        assert lines[0].startswith("demo")
        assert len(lines) + len(parts) - 1 <= height
        listed = [line for line in lines if re.match(r" +[0-3] +[0-3]  ", line)]
        if palette.has_color and not (key and heads == "all" and height < 30):  # where the numbers matter more
            assert any(" flies like an arr▸ow" in line for line in lines)
        assert ("--all lists every head" in "".join(page.notes())) == (heads == "all" and len(listed) < 16)


def test_small_weights_of_a_table_have_its_digits() -> None:
    trace = attncli.inspect(SENTENCE, model="demo", layer=3)
    for palette in (Palette(), Palette("truecolor")):
        assert not re.search(r"\de-\d", drawn(trace, "arrow", palette=palette, width=120))
        head = attncli.inspect(SENTENCE, model="demo", layer=3, head=3)
        assert not re.search(r"\de-\d", drawn(head, "arrow", top=2, palette=palette, width=120))


def test_nan_stands_first_and_is_a_mark_and_valid_json() -> None:
    layer = toy().layers[0]
    k = layer.k.copy()
    k[0, 1, 3] = np.nan
    tokens = tokens_of(*"abcde")
    broken = trace_of(replace(layer, k=k, scale=1.0, heads=(0,)), queries=tokens, keys=tokens)
    (cell,) = explain(broken, "e", "b")
    assert cell.ranked[0] == 3
    assert re.search(r"3 +\S+ +nan +nan +X\n", drawn(broken, "e", "b"))
    document = json.loads("".join(write_why(broken, (cell,), None)))
    assert (document["dot_product"], document["weight"], document["dimensions"][0]["k"]) == ("nan", "nan", "nan")
    assert "nan" in drawn(broken, "e")


# --- which cell ------------------------------------------------------------------------------------------------
