"""Attention that cannot be followed is counted, what cannot be read is not ok, and other softmaxes are left out."""

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from watched_programs import watched

FOLDER = Path(__file__).parent / "programs"
MIXED = "talking_heads convolved_heads normalized_heads".split()
# What is said of a program: of how many softmaxes, and of what shape.
UNSEEN = {
    "band": "1 softmax is not shown, as attn could not follow it from scores to values: [12, 12, 7] at FILE:LINE",
    "compiled_softclamp": "1 softmax is not shown, as attn could not follow it from scores to values: "
    "[3, 4, 12, 12] at FILE:LINE",
    "blocks": "1 softmax is not shown, as attn could not follow it from scores to values: "
    "[3, 4, 3, 4, 16] at FILE:LINE",
    "copied_band": "1 softmax is not shown, as attn could not follow it from scores to values: "
    "[3, 4, 12, 12] at FILE:LINE",
    "multiplied_by_hand": "1 softmax is not shown, as attn could not follow it from scores to values: "
    "[3, 4, 12, 12] at FILE:LINE",
    "re_attention": "1 softmax is not shown, as attn could not follow it from scores to values: "
    "[3, 4, 12, 12] at FILE:LINE",
    "stacked_weights": "3 softmaxes are not shown, as attn could not follow them from scores to values: "
    "[4, 12, 12] at FILE:LINE",
}
OTHERS = [
    "softclamped",
    "logged",
    "linear",
    "matched",
    "experts",
    "gated",
]
Program = Callable[[], list[torch.Tensor]]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Program]]:
    """Give a function that imports a program; what it imported from the folder is forgotten afterwards."""
    monkeypatch.syspath_prepend(FOLDER)
    own = {path.stem for path in FOLDER.glob("*.py")}
    yield lambda name, module="unfollowed": getattr(importlib.import_module(module), name)
    for name in own & set(sys.modules):
        del sys.modules[name]


@pytest.mark.parametrize("name", MIXED)
def test_heads_that_are_mixed_are_shown_and_not_judged(name: str, program: Callable[..., Program]) -> None:
    calls = watched(program(name))
    (row,) = calls
    assert (row.calls, str(row.sizes[1]), str(row.sizes[3]), row.unfound) == (1, "4", "12", "not checked")
    assert row.mask.startswith("not read: ")
    assert not row.findings
    assert calls.notes == []


@pytest.mark.parametrize("name", UNSEEN)
def test_what_cannot_be_followed_is_counted_in_one_line(name: str, program: Callable[..., Program]) -> None:
    calls = watched(program(name))
    (said,) = calls.notes
    assert re.sub(r"[^ ]*unfollowed\.py:\d+", "FILE:LINE", said) == UNSEEN[name]
    line = int(re.findall(r"unfollowed\.py:(\d+)", said)[0])
    assert (FOLDER / "unfollowed.py").read_text().splitlines()[line - 1].endswith("# <-")
    assert not calls


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_is_said_of_softmaxes_that_are_shown_or_weigh_nothing(
    name: str, program: Callable[..., Program]
) -> None:
    calls = watched(program(name))
    assert calls.notes == []
    assert {row.unfound for row in calls} <= {"ok"}
    assert bool(calls) == (name in ("softclamped", "logged"))
