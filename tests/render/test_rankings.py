"""Rankings of heads on a screen: those that there is no room for are counted."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from running import plain, printed

import attncli
from attncli.render.ablation import ablation_parts
from attncli.render.diff import DiffView
from attncli.render.pairs import pair_parts
from attncli.render.palette import Palette

TEXT = "one two three four one two"
SHADES = Palette("blocks")


def of_ablation(width: int, height: int) -> list[Any]:
    return ablation_parts(attncli.ablate(TEXT), SHADES, width, height)


def of_diff(width: int, height: int) -> list[Any]:
    both = (attncli.inspect(text, "demo", layer="all") for text in (TEXT, TEXT.replace("four", "five")))
    return DiffView(attncli.diff(*both), SHADES, width, height=height).renderables()


def of_pairs(width: int, height: int) -> list[Any]:
    report = attncli.heads(model="demo", pairs=[{"text": TEXT, "query": 6, "keys": [3]}])
    return pair_parts(report, SHADES, width, height)


@pytest.mark.parametrize("parts_of", [of_ablation, of_diff, of_pairs])
@pytest.mark.parametrize(("width", "height"), [(60, 23), (80, 23), (100, 50)])
def test_the_heads_of_a_ranking_and_those_it_counts_are_all(
    parts_of: Callable[[int, int], list[Any]], width: int, height: int
) -> None:
    parts = parts_of(width, height)
    shown = plain(printed(parts, SHADES, width))
    assert shown.count("\n") + len(parts) - 1 <= height
    more = re.search(r" *\b(\d+) more$", shown, re.MULTILINE)
    ranked = re.findall(r"^.*\bL\dH\d +[−-]?\d?[.\d]+ +.*$", shown.partition("cells ")[0], re.MULTILINE)
    assert len(ranked) + int(more[1] if more else 0) == 16
