"""Atoms without effect: dropped one by one, over each size that they are looked at."""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attncli.errors import AttnError
from attncli.masks.comparison import idle_note
from attncli.masks.expressions import with_lengths
from attncli.masks.mask_grid import MaskSize
from attncli.masks.parser import parse

ROOT = Path(__file__).parents[2]


def noted(text: str, queries: int, past: int = 0, lengths: Any = None) -> str | None:
    expression = parse(text, allow_rows=True)
    expression = expression if lengths is None else with_lengths(expression, np.array(lengths))
    return idle_note(expression, MaskSize(queries, queries + past, past))


@pytest.mark.parametrize(("text", "size", "past", "names", "rest"), [
    ("causal | window(2)", 6, 0, "window(2) has", "causal"),
    ("causal & window(2000)", 8, 0, "window(2000) has", "causal"),
    ("causal | window(2) | prefix(1) | window(3)", 6, 0, "window(2), prefix(1), window(3) have", "causal"),
    ("causal & prefix(1)", 3, 0, "causal has", "prefix(1)"),
    ("causal | prefix(3)", 3, 5, "prefix(3) has", "causal"),
])  # fmt: skip
def test_an_atom_without_which_the_cells_are_the_same_is_noted(
    text: str, size: int, past: int, names: str, rest: str
) -> None:
    assert noted(text, size, past) == f"{names} no effect at this size: the expression equals {rest}"


@pytest.mark.parametrize(
    "text",
    ["causal", "window(9)", "causal & window(4)", "causal & (window(2) | prefix(1))", "causal & dilated(4,9)",
     "causal & docs(3,4)", " | ".join(["causal"] * 3000)],
)  # fmt: skip
def test_an_atom_that_changes_a_cell_and_one_that_stands_alone_are_not(text: str) -> None:
    assert noted(text, 6) is None  # `causal` beside a window says again what the window says
    assert noted(text, 10**5) is None  # comparing so many cells would take seconds


def test_the_lengths_of_rows_are_part_of_the_size() -> None:
    assert noted("causal & pad", 5, lengths=[5, 2]) is None
    assert noted("causal & pad", 5, lengths=[5, 5]) == "pad has no effect at this size: the expression equals causal"


def test_the_masks_of_examples_have_no_idle_atom(attn: Callable[..., Any]) -> None:
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"))]
    pages += [attn("help", "masks").out, *(attn("mask", each, "--help").out for each in ("show", "check", "diff"))]
    written = {found for page in pages for found in re.findall(r'(?:mask show|--mask|--expect) "([^"]+)"', page)}
    assert len(written) > 5
    for text in sorted(written):
        with suppress(AttnError):  # an example of an error, or of another size
            assert noted(text, 8, lengths=[5, 2] if "pad" in text else None) is None, text
