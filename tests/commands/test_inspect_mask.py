"""The mask inside `attn inspect`, and the rows that it leaves without a key, as a user meets them."""

import re
from collections.abc import Callable
from typing import Any

SENTENCE = "time flies like an arrow"
WARNING = "attn: warning: layer 0: the mask leaves no key to query"
Run = Callable[..., Any]


def test_inspect_draws_a_mask_as_mask_show_does(attn: Run) -> None:
    expression = "causal & window(3) & pad(left=1)"
    inspected = attn("inspect", SENTENCE, "--mask", expression, "--show", "mask")
    shown = attn("mask", "show", expression, SENTENCE)
    head, *parts = inspected.out.split("\n\n")
    assert head.startswith("toy layer · 4 heads")
    titled, facts = parts
    picture, expected = titled.split("\n", 1)[1], shown.out.split("\n\n")[1]
    assert picture == expected
    assert facts == shown.out.split("\n\n")[2]
    assert "0 time  !  · · · · ·" in picture


def test_a_row_without_a_key_is_marked_by_default_and_warned_about(attn: Run) -> None:
    ran = attn("inspect", SENTENCE, "--mask", "causal & pad(left=1)")
    assert ran.err == f"{WARNING} 0 'time'; the softmax of such a row is NaN\n"
    assert len(re.findall(r"^0 time  ! ", ran.out, re.MULTILINE)) == 2  # in the matrices and the maps
    assert ran.out.count("! fully masked") == 2
    unseen = attn("inspect", SENTENCE, "--mask", "causal & pad(left=1)", "--query", "like")
    assert unseen.err == ""
    assert "fully masked" not in unseen.out
