"""Every view at four sizes of a terminal: no line is wider, and no page higher."""

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
import pytest
from live_calls import CAUSAL, mask_argument, sdpa
from rich.cells import cell_len
from running import plain, printed
from traces import layer_of, trace_of
from views import of_heads, report_of

import attncli
from attncli.analysis.calls.calls import Calls
from attncli.analysis.diff import Difference
from attncli.analysis.why import explain
from attncli.masks.comparison import compare
from attncli.masks.mask_grid import GridOptions, MaskSize, open_masks
from attncli.recording.call import CallSite
from attncli.render.ablation import ablation_parts
from attncli.render.bars import TableFormat
from attncli.render.calls import calls_parts
from attncli.render.diff import DiffView
from attncli.render.heads import head_parts
from attncli.render.heatmap import legend
from attncli.render.inspect import Layout
from attncli.render.masks import MaskView, compared
from attncli.render.pairs import pair_parts
from attncli.render.palette import Palette, Scale
from attncli.render.why import CompositionPage, WhyPage
from attncli.trace.view import View

SIZES = [
    (Palette("256"), 60, 23), (Palette("truecolor"), 80, 23), (Palette("blocks"), 120, 39), (Palette("256"), 200, 59),
]  # fmt: skip
ODD = "時間は矢 👩‍👩‍👧 \x1b[31m [/INST] :smile: " + "w" * 300
RANKED = "one two three four one two"
PAIR = {"text": RANKED, "query": 6, "keys": [3]}
Parts = Callable[[Palette, int, int], Iterable[Any]]


@cache
def diff_of(*texts: str, model: str | None = None) -> Difference:
    return attncli.diff(*(attncli.inspect(text, model, layer="all") for text in texts))


@cache
def deep_diff() -> Difference:
    arrays = np.random.default_rng(0).normal(size=(30, 9, 4, 3)).astype(np.float32)  # layers, heads, queries, width
    sides = (trace_of(*(layer_of(q * by, q, layer=layer) for layer, q in enumerate(arrays))) for by in (1, 2))
    return attncli.diff(*sides)


def calls_at(place: CallSite) -> Calls:
    calls = Calls()
    calls.take(sdpa(mask_argument(CAUSAL), at=place))
    calls.finish()
    return calls


def masks_of(size: int) -> Any:
    return open_masks(["causal & window(4)", "causal"], GridOptions(MaskSize(size, size, None)))


# What has no height is printed whole.
WIDE: dict[str, Parts] = {
    "layer": lambda palette, width, _: Layout(attncli.inspect(ODD), View(), palette, width).renderables(),
    "fully masked rows": lambda palette, width, _: Layout(
        of_heads(1), View(show=frozenset({"mask", "heatmap"})), palette, width
    ).renderables(),
    "masked cross": lambda palette, width, _: Layout(
        attncli.inspect(ODD, target="a b c d", mask="~queries(1,3)"), View(show=frozenset({"mask"})), palette, width
    ).renderables(),
    "why": lambda palette, width, _: WhyPage(
        (trace := attncli.inspect(ODD)), explain(trace, "1", "1"), 8, TableFormat(palette, width)
    ).parts(),
    "composition": lambda palette, width, _: CompositionPage(
        attncli.inspect("time flies", "demo", layer=1).layer(1).head(2).composition("flies", "time"),
        None,
        TableFormat(palette, width),
    ).parts(),
    "calls": lambda palette, width, _: calls_parts(
        calls_at(CallSite("a/" * 40 + "attention.py", 5678, "Block.forward", "時間は矢のように飛ぶ")), palette, width
    ),
    "legend": lambda palette, width, _: [legend(Scale.around_zero(3e-7, "log"), ["· masked"], palette, width)],
    "odd diff": lambda palette, width, _: DiffView(diff_of(f"a {ODD}", f"{ODD} b"), palette, width).renderables(),
}
HIGH: dict[str, Parts] = {
    **{
        f"heads {layers}×{heads}": lambda *to, layers=layers, heads=heads: head_parts(report_of(layers, heads), *to)
        for layers, heads in ((1, 4), (12, 12), (30, 9), (32, 32))
    },
    "ablation": lambda *to: ablation_parts(attncli.ablate(RANKED), *to),
    "pairs": lambda *to: pair_parts(
        attncli.heads(model="demo", pairs=[{"text": RANKED, "query": 6, "keys": [3]}]), *to
    ),
    "diff": lambda palette, width, height: DiffView(
        diff_of(RANKED, RANKED.replace("four", "five"), model="demo"), palette, width, height=height
    ).renderables(),
    "deep diff": lambda palette, width, height: DiffView(deep_diff(), palette, width, height=height).renderables(),
    "mask": lambda *to: MaskView(*to).shown(masks_of(100)[0]),
    "masks": lambda palette, width, height: compared(
        compare(*masks_of(40)), palette, width, MaskView(palette, width, height).lines
    ),
}


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[1]}×{size[2]}")
@pytest.mark.parametrize("name", [*WIDE, *HIGH])
def test_a_view_is_no_larger_than_its_terminal(name: str, size: tuple[Palette, int, int]) -> None:
    palette, width, height = size
    parts = list((WIDE | HIGH)[name](*size))
    shown = printed(parts, palette, width)
    lines = plain(shown).splitlines()
    assert "\x1b" not in plain(shown)
    assert max(map(cell_len, lines)) <= width
    assert name in WIDE or len(lines) + len(parts) - 1 <= height  # blank lines between the parts


@pytest.mark.parametrize("name", ["ablation", "diff", "pairs"])
@pytest.mark.parametrize(("width", "height"), [(60, 23), (100, 50)])
def test_the_heads_of_a_ranking_and_those_it_counts_are_all(name: str, width: int, height: int) -> None:
    palette = Palette("blocks")
    shown = plain(printed(HIGH[name](palette, width, height), palette, width))
    more = re.search(r" *\b(\d+) more$", shown, re.MULTILINE)
    ranked = re.findall(r"^.*\bL\dH\d +-?\d?[.\d]+\b.*$", shown.partition("cells ")[0], re.MULTILINE)
    assert len(ranked) + int(more[1] if more else 0) == 16
