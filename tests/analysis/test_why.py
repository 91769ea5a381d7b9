"""One cell taken apart: every stage against a plain loop, sums that are sums, and a page that hides nothing."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from running import plain, printed
from traces import layer_of, tokens_of, trace_of, watched

import attncli
from attncli.analysis.warnings import warnings_of_rows
from attncli.analysis.why import explain, why
from attncli.formats.documents import write_why
from attncli.render.bars import TableFormat
from attncli.render.palette import Palette
from attncli.render.why import WhyPage
from attncli.trace.trace import Trace

SENTENCE = "time flies like an arrow"


def drawn(trace: Trace, query: str, key: str | None = None, top: int = 8, palette: Palette = Palette(),  # noqa: B008
          width: int | None = None, precision: int | None = None) -> str:  # fmt: skip
    page = WhyPage(trace, explain(trace, query, key), top, TableFormat(palette, width, precision))
    return plain(printed(page.parts(), palette, width))


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
    assert row.is_blind
    np.testing.assert_allclose(row.weights, [weight] * 3)
    assert "fully masked" in drawn(trace, "1", "2")
    warnings = list(warnings_of_rows(trace, [row]))
    assert len(warnings) == 1
    assert "the mask leaves no key to query 1 'q1'" in warnings[0]
    assert drawn(trace, "1").count("X") == (3 if math.isnan(weight) else 0)


def test_a_layer_that_gives_its_weights_alone_shows_these_and_says_what_is_left_out() -> None:
    weights = [[0.26894143, 0.73105854, 0.0]]
    trace = trace_of(watched([[1.0, 2.0, -math.inf]], weights, [[True, True, False]], "cross"))
    cells = explain(trace, 0, 1)
    document = json.loads("".join(write_why(trace, cells, None)))
    assert (document["dimensions"], document["dot_product"], document["value_norm"]) == (None, None, None)
    assert (document["score"], document["weight"], document["capture"]) == (2.0, 0.73105854, "weights-only")
    warnings = list(warnings_of_rows(trace, [cells[0].row]))
    assert warnings == [
        "layer 0: q and k are not known, so nothing explains the scores",
        "layer 0: its values are not known, so contributions are left out",
    ]
    shown = drawn(trace, "0", "1")
    assert "q·k" not in shown
    assert "‖v‖" not in shown
    assert re.search(r"weight +0\.7311  ÷ 1\.3679", shown)
    masked = explain(trace, 0, 2)[0]
    assert (masked.score, masked.weight) == (-np.inf, 0)
    assert "masked, and recorded after the mask" in drawn(trace, "0", "2")


def test_nan_stands_first_and_is_a_mark_and_valid_json() -> None:
    layer = attncli.inspect(SENTENCE).layers[0]
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
