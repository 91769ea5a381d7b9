"""The rule that a mask follows, found from its cells alone."""

import numpy as np
import pytest

from attncli.masks.comparison import recognized
from attncli.masks.layout import Size, laid_out
from attncli.masks.parser import parse

RULES = [
    "full", "causal", "window(3)", "causal & chunk(4)", "band(2,2)", "band(1,3)",
    "causal & pad(left=2)", "causal & pad(right=3)", "window(2) & pad(left=3)", "pad(left=1)", "pad(right=2)",
    "causal & chunk(3) & pad(right=2)", "band(2,1) & pad(right=3)",
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_a_mask_is_told_from_its_cells(rule: str) -> None:
    cells = laid_out(parse(rule), Size(9, 9, 0))[0]
    assert str(recognized(cells, 0)) == rule


@pytest.mark.parametrize("rule", ["full", "causal", "window(3)", "causal & pad(left=2)"])
def test_a_mask_after_a_past_is_told_too(rule: str) -> None:
    cells = laid_out(parse(rule), Size(3, 9, 6))[0]
    assert str(recognized(cells, 6)) == rule


def test_what_follows_no_rule_has_none() -> None:
    cells = np.tri(6, dtype=bool)
    cells[1, 4] = True
    assert recognized(cells, 0) is None
    assert recognized(np.zeros((3, 3), bool), 0) is None
    random = np.random.default_rng(0).random((6, 6)) < 0.5
    assert recognized(random, 0) is None


def test_what_is_found_gives_the_very_cells() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        queries, past = rng.integers(1, 4), rng.integers(0, 3)
        cells = rng.random((queries, queries + past)) < 0.6
        found = recognized(cells, int(past))
        if found is not None:
            np.testing.assert_array_equal(laid_out(found, Size(*cells.shape, int(past)))[0], cells)
