"""Atoms without effect: dropped one by one and compared in plain loops, over each size that they are looked at."""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attncli.errors import AttnError
from attncli.masks.effects import idle_note
from attncli.masks.expressions import with_lengths
from attncli.masks.mask_grid import MaskSize
from attncli.masks.parser import parse

ROOT = Path(__file__).parents[2]


def noted(text: str, queries: int, past: int = 0, lengths: Any = None) -> str | None:
    expression = parse(text, allow_rows=True)
    expression = expression if lengths is None else with_lengths(expression, np.array(lengths))
    return idle_note(expression, MaskSize(queries, queries + past, past))


@pytest.mark.parametrize(
    ("text", "size", "note"),
    [
        ("causal | window(2)", 6, "window(2) has no effect: the expression equals causal"),
        ("causal & window(8)", 8, "window(8) has no effect at this size: the expression equals causal"),
        ("causal & window(2000)", 8, "window(2000) has no effect at this size: the expression equals causal"),
        ("causal & window(4) | prefix(2)", 6, "window(4) has no effect at this size: the expression equals causal | p"),
        ("causal & (window(2) | causal | prefix(1))", 6, "window(2), causal and prefix(1) have no effect: the expres"),
        ("causal & ~prefix(0)", 8, "~prefix(0) has no effect: the expression equals causal"),
        ("~(causal | window(2))", 4, "window(2) has no effect: the expression equals ~causal"),
        ("causal & prefix(1)", 3, "causal has no effect: the expression equals prefix(1)"),
        ("window(4) & window(8)", 20, "window(8) has no effect: the expression equals window(4)"),
        ("docs(3,2) & band(3,3)", 5, "band(3,3) has no effect at this size: the expression equals docs(3,2)"),
        ("causal & dilated(4,9)", 20, None),
    ],
)
def test_an_atom_without_which_the_cells_are_the_same_is_noted(text: str, size: int, note: str | None) -> None:
    found = noted(text, size)
    assert found is None if note is None else (found or "").startswith(note)


@pytest.mark.parametrize(
    "text", ["causal", "window(9)", "causal & window(4)", "causal & (window(2) | prefix(1))", "causal | prefix(3)"]
)
def test_an_atom_that_changes_a_cell_and_one_that_stands_alone_are_not(text: str) -> None:
    assert noted(text, 6) is None  # `causal` beside a window says again what the window says


def test_a_past_and_the_lengths_of_rows_are_part_of_the_size() -> None:
    assert (
        noted("causal | prefix(3)", 3, past=5) == "prefix(3) has no effect at this size: the expression equals causal"
    )
    assert noted("causal & pad", 5, lengths=[5, 2]) is None
    assert noted("causal & pad", 5, lengths=[5, 5]) == "pad has no effect at this size: the expression equals causal"


def test_masks_that_take_seconds_to_compare_are_not_compared() -> None:
    assert noted("causal | window(2)", 10**5) is None
    assert noted(" | ".join(["causal"] * 3000), 4) is None


def test_the_masks_of_examples_have_no_idle_atom(attn: Callable[..., Any]) -> None:
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"))]
    pages += [attn("mask", "--help").out, *(attn("mask", each, "--help").out for each in ("show", "check", "diff"))]
    written = {found for page in pages for found in re.findall(r'(?:mask show|--mask|--expect) "([^"]+)"', page)}
    assert len(written) > 5
    for text in sorted(written):
        with suppress(AttnError):  # an example of an error, or of another size
            assert noted(text, 8, lengths=[5, 2] if "pad" in text else None) is None, text
