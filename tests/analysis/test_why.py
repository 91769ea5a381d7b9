"""One cell taken apart: every stage against a plain loop, sums that are sums, and a page that hides nothing."""

import json
import math
import re
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from running import plain, printed
from traces import layer_of, tokens_of, trace_of, watched
from views import TIERS

import attncli
from attncli.analysis.cell import AttentionCell, AttentionRow
from attncli.analysis.warnings import warnings_of_rows
from attncli.analysis.why import explain, why
from attncli.formats.documents import write_why
from attncli.render.bars import TableFormat, bar, signed_bar
from attncli.render.palette import Palette, Scale
from attncli.render.why import WhyPage
from attncli.trace.layer import LayerTrace
from attncli.trace.trace import Trace
from attncli.trace.view import Ramp

SENTENCE = "time flies like an arrow"
HEADS, GROUPS, QUERIES, KEYS, WIDTH, VALUES = 6, 2, 5, 7, 11, 3


@st.composite
def layers(draw: st.DrawFn) -> LayerTrace:
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype = draw(st.sampled_from([np.float32, np.float64]))

    def normal(*shape: int) -> np.ndarray:
        return random.normal(size=shape, scale=draw(st.sampled_from([0.1, 1.0, 3.0]))).astype(dtype)

    allowed = random.random((draw(st.sampled_from([1, HEADS])), QUERIES, KEYS)) < 0.7
    allowed[..., 0] |= draw(st.booleans())
    return layer_of(
        normal(HEADS, QUERIES, WIDTH),
        normal(GROUPS, KEYS, WIDTH),
        normal(GROUPS, KEYS, VALUES),
        mask=np.broadcast_to(allowed, (HEADS, QUERIES, KEYS)),
        scale=draw(st.sampled_from([1.0, WIDTH**-0.5, 0.2])),
        bias=draw(st.sampled_from([None, normal(1, QUERIES, KEYS), normal(HEADS, QUERIES, KEYS)])),
        softcap=draw(st.sampled_from([None, 5.0])),
        sinks=draw(st.sampled_from([None, normal(HEADS), normal(HEADS, QUERIES)])),
        fill=draw(st.sampled_from([-math.inf, float(np.finfo(np.float32).min)])),
    )


def plain_row(layer: LayerTrace, head: int, query: int) -> list[dict[str, float]]:
    """Every stage of every cell of a row, one number after the other."""
    group = head // (HEADS // GROUPS)
    found = []
    for key in range(KEYS):
        cell = {
            "products": [float(a) * float(b) for a, b in zip(layer.q[head, query], layer.k[group, key], strict=True)]
        }
        cell["dot_product"] = math.fsum(cell["products"])
        cell["scaled"] = cell["dot_product"] * layer.scale
        plane = None if layer.bias is None else layer.bias[head if len(layer.bias) > 1 else 0]
        cell["bias"] = None if plane is None else float(plane[query, key])
        cell["score"] = cell["scaled"] + (cell["bias"] or 0)
        if layer.softcap:
            cell["score"] = layer.softcap * math.tanh(cell["score"] / layer.softcap)
        cell["allowed"] = bool(layer.mask.rows([head], np.array([query]))[0, 0, key])
        cell["masked"] = cell["score"] if cell["allowed"] else layer.fill
        found.append(cell)
    sink = [] if layer.sinks is None else [float(np.broadcast_to(layer.sinks.T, (QUERIES, HEADS))[query, head])]
    highest = max([cell["masked"] for cell in found] + sink)
    if highest == -math.inf:
        return []
    total = math.fsum(math.exp(value - highest) for value in [cell["masked"] for cell in found] + sink)
    output = [0.0] * VALUES
    for key, cell in enumerate(found):
        cell |= {"highest": highest, "exponential": math.exp(cell["masked"] - highest), "total": total}
        cell["weight"] = cell["exponential"] / total
        cell["value"] = [float(value) for value in layer.v[group, key]]
        cell["value_norm"] = math.sqrt(sum(value**2 for value in cell["value"]))
        cell["contribution_norm"] = math.sqrt(sum((cell["weight"] * value) ** 2 for value in cell["value"]))
        output = [sum_ + cell["weight"] * value for sum_, value in zip(output, cell["value"], strict=True)]
    length = math.sqrt(sum(value**2 for value in output))
    for cell in found:
        along = sum(value * other for value, other in zip(cell["value"], output, strict=True))
        cell |= {"output_norm": length, "output_share": cell["weight"] * along / length**2 if length else None}
        cell["sink_weight"] = math.exp(sink[0] - highest) / total if sink else None
    return found


@settings(max_examples=40)
@given(layers(), st.integers(0, HEADS - 1), st.integers(0, QUERIES - 1), st.integers(0, KEYS - 1))
def test_every_stage_is_what_a_plain_loop_computes(layer: LayerTrace, head: int, query: int, key: int) -> None:
    trace = trace_of(layer)
    expected = plain_row(layer, head, query)
    cells = explain(trace, query, key)
    assert [cell.row.head.head for cell in cells] == list(range(HEADS))
    cell = cells[head]
    assert isinstance(cell, AttentionCell)
    if not expected:
        assert np.isnan(cell.weight)
        return
    row, wanted = cell.row, expected[key]
    got = {
        name: getattr(cell, name)
        for name in ("dot_product", "scaled", "bias", "score", "allowed", "masked", "exponential", "weight",
                     "value_norm", "contribution_norm", "output_share")
    } | {"highest": row.softmax.highest, "total": row.softmax.total, "output_norm": row.output_norm,
         "sink_weight": row.sink_weight}  # fmt: skip
    for name, value in got.items():
        # Single precision, and shares of what may nearly cancel.
        scale = max(1.0, max(e["contribution_norm"] for e in expected) / max(wanted["output_norm"], 1e-9)) ** 2
        if value is None or wanted[name] is None:
            assert value is wanted[name], name
        else:
            assert value == pytest.approx(wanted[name], rel=2e-4, abs=2e-5 * scale), name
    np.testing.assert_allclose(cell.products, wanted["products"], rtol=1e-5)
    assert float(cell.products.sum(dtype=np.float64)) == pytest.approx(float(cell.dot_product), rel=1e-4, abs=1e-4)
    assert sorted(cell.ranked) == list(range(WIDTH))
    assert list(np.abs(cell.products)[cell.ranked]) == sorted(np.abs(cell.products), reverse=True)
    # What adds up: the weights with the sink's, and the shares.
    assert float(row.weights.sum()) + float(row.sink_weight or 0) == pytest.approx(1, abs=1e-5)
    if row.output_shares is not None:
        assert float(row.output_shares.sum()) == pytest.approx(1, abs=1e-4 * scale)
    assert list(row.weights[row.ranked]) == sorted(row.weights, reverse=True)


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
        "     0  2.0000   3.0000   6.0000              │████████████",
        "     1  1.0000  -2.0000  -2.0000          ████│",
        "1 more                    0.2500",
        "   q·k                    4.2500",
        "q·k      4.2500  the sum over 3 dimensions",
        "× scale  2.1250  0.5",
        "+ bias   1.1250  -1.0000",
        "score    1.0197  softcapped, 2·tanh(x / 2); the mask allows",
        "                 it",
        "exp      1.0000  e^(score − 1.0197), the row's highest taken",
        "                 off",
        "weight   0.7349  ÷ 1.3607, the row's total, 0.3607 of it the",
        "                 sink's",
        "‖v‖      5.0000  the length of the value",
        "‖w·v‖    3.6745  weight × ‖v‖, what is carried",
        "share    1.0000  of the output's length 3.6745",
    ]


def test_bars_have_a_side_for_each_sign_and_marks_for_what_is_no_number() -> None:
    for palette in TIERS:
        full, axis = palette.fit("█"), palette.fit("│")
        assert signed_bar(1.0, 1.0, 9, palette)[0] == "    " + axis + full * 4
        assert signed_bar(-0.5, 1.0, 9, palette)[0] == "  " + full * 2 + axis
        assert signed_bar(-7.0, 1.0, 9, palette)[0] == full * 4 + axis
        marks = [(math.nan, "X"), (math.inf, "I"), (-math.inf, "-I")]
        for value, mark in marks:
            assert signed_bar(value, 1.0, 9, palette) == ("    " + axis + mark, None)
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
    (cell,) = why(SENTENCE, query="time", key="arrow", heads=0)
    assert (cell.allowed, cell.weight, cell.exponential, cell.masked) == (False, 0, 0, -np.inf)
    assert cell.score == cell.scaled != 0
    shown = drawn(attncli.inspect(SENTENCE, heads=0), "time", "arrow")
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
    said = list(warnings_of_rows(trace, [row]))
    assert len(said) == 1
    assert "the mask leaves no key to query 1 'q1'" in said[0]
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
    said = list(warnings_of_rows(trace, [cells[0].row]))
    assert said == [
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


def test_more_than_a_scale_between_products_and_scores_is_said() -> None:
    ones = np.ones((1, 1, 2), np.float32)
    k, v = np.ones((1, 2, 1), np.float32), np.ones((1, 2, 3), np.float32)
    trace = trace_of(layer_of(ones[..., :1], k, v, scale=None, scores=5 * ones, weights=ones / 2))
    (cell,) = explain(trace, 0, 1)
    assert (cell.dot_product, cell.scaled, cell.score, cell.weight) == (1, None, 5, 0.5)
    assert "more than a scale" in "".join(warnings_of_rows(trace, [cell.row]))


def test_nan_stands_first_and_is_a_mark_and_valid_json() -> None:
    layer = toy().layers[0]
    k = layer.k.copy()
    k[0, 1, 3] = np.nan
    tokens = tokens_of(*"abcde")
    broken = trace_of(replace(layer, k=k, scale=1.0, heads=(0,)), queries=tokens, keys=tokens)
    (cell,) = explain(broken, "e", "b")
    assert cell.ranked[0] == 3
    assert re.search(r"3 +\S+ +nan +nan +│X\n", drawn(broken, "e", "b"))
    document = json.loads("".join(write_why(broken, (cell,), None)))
    assert (document["dot_product"], document["weight"], document["dimensions"][0]["k"]) == ("nan", "nan", "nan")
    assert "nan" in drawn(broken, "e")


def test_large_numbers_keep_their_size_and_small_ones_are_not_nothing() -> None:
    trace = toy(heads=0)
    layer = trace.layers[0]
    large = replace(layer, q=layer.q * 1e6, v=layer.v * 1e30, scale=1e-6, out_projection=None)
    (cell,) = explain(trace_of(large), 4, 1)
    assert np.isfinite(cell.value_norm)  # its square is beyond a float32
    assert re.search(r"e\+\d\d", drawn(trace_of(large), "4", "1"))
    small = replace(layer, q=layer.q * 1e-6, scale=1.0)
    assert re.search(r"score +-?\d\.\d\de-0\d", drawn(trace_of(small), "4", "1"))


# --- which cell ------------------------------------------------------------------------------------------------


def test_an_index_is_never_taken_for_a_token_that_is_called_like_it() -> None:
    trace = attncli.inspect("3 1 2 0", heads=0)
    assert [explain(trace, index)[0].query.text for index in range(4)] == ["3", "1", "2", "0"]
    assert explain(trace, "3")[0].query.index == 0  # a text is a text first, as in inspect
