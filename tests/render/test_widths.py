"""Every view at every width, on every kind of terminal: no line is wider."""

import re
from collections.abc import Iterable
from functools import cache
from itertools import product
from typing import Any

import pytest
from rich.cells import cell_len
from running import plain, printed
from views import TIERS, of_heads

import attncli
from attncli.analysis.diff import Difference
from attncli.analysis.why import explain
from attncli.render.bars import TableFormat
from attncli.render.composition import CompositionPage
from attncli.render.diff import DiffView
from attncli.render.inspect import Layout
from attncli.render.palette import Palette
from attncli.render.why import WhyPage
from attncli.trace.trace import Trace
from attncli.trace.view import View

SENTENCE = "time flies like an arrow"
TEXTS = ["時間は矢のように飛ぶ 👩‍👩‍👧 x y", "[/INST] :smile: \x1b[31m a b c " + "w" * 300]
WIDTHS = (40, 79, 200)


def hold(parts: Iterable[Any], palette: Palette, width: int) -> str:
    shown = printed(parts, palette, width)
    assert max(map(cell_len, plain(shown).splitlines())) <= width
    assert "\x1b" not in plain(shown)
    return shown


pytestmark = pytest.mark.parametrize("palette", TIERS, ids=lambda palette: palette.tier)


def test_a_layer(palette: Palette) -> None:
    for text, width in product(TEXTS, WIDTHS):
        hold(Layout(attncli.inspect(text), View(), palette, width).renderables(), palette, width)


@cache
def masked() -> list[Trace]:
    every_other = " | ".join(f"queries({row},{row + 1})" for row in range(0, 70, 2))
    return [
        attncli.inspect(" ".join(f"token{index}" for index in range(70)), mask=every_other),
        attncli.inspect("\x1b[31m 時間 " + "w" * 300, target="a b c d e f g h", mask="~queries(1,3)"),
        of_heads(1),
    ]


def test_a_mask(palette: Palette) -> None:
    for trace in masked():
        for width in WIDTHS:
            layout = Layout(trace, View(show=frozenset({"mask", "heatmap"})), palette, width)
            shown = hold(layout.renderables(), palette, width)
            assert all(word in shown for word in ("fully masked", "per query", "% of cells"))


@cache
def differences() -> list[Difference]:
    long = " ".join(f"word{index}" for index in range(30))
    pairs = [(SENTENCE, "fruit flies like a banana"), (f"time {long}", f"{long} 時間 🙂 flies")]
    return [attncli.diff(*(attncli.inspect(text, d_model=8, num_heads=2) for text in pair)) for pair in pairs]


def test_a_comparison(palette: Palette) -> None:
    for difference in differences():
        for width in WIDTHS:
            shown = plain(hold(DiffView(difference, palette, width).renderables(), palette, width))
            assert re.search(r"^ +A\b", shown, re.MULTILINE)
            assert re.search(r"^ .* B . A$", shown, re.MULTILINE)


def test_a_cell_taken_apart(palette: Palette) -> None:
    for text, key in product(TEXTS, (None, "1")):
        trace = attncli.inspect(text, head=2, num_heads=4, d_k=24) if key else attncli.inspect(text)
        for width in WIDTHS:
            hold(WhyPage(trace, explain(trace, "1", key), 8, TableFormat(palette, width)).parts(), palette, width)


def test_a_composition(palette: Palette) -> None:
    split = attncli.inspect(SENTENCE, "demo", layer=1).layer(1).head(2).composition("flies", "time")
    for width in WIDTHS:
        hold(CompositionPage(split, None, TableFormat(palette, width)).parts(), palette, width)
