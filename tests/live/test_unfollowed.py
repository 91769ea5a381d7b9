"""Attention that cannot be followed is counted, what cannot be read is not ok, and other softmaxes are left out."""

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from watched_programs import watched

FOLDER = Path(__file__).parent / "programs"
ONE = "1 softmax is not shown, as attn could not follow it from scores to values: "
UNSEEN = {
    "Band": f"{ONE}[12, 12, 7]",
    "CompiledSoftclamp": f"{ONE}[3, 4, 12, 12]",
    "ReAttention": f"{ONE}[3, 4, 12, 12]",
}
OTHERS = "Logged Linear Matched".split()
Program = Callable[[], list[torch.Tensor]]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Program]]:
    """Give a function that imports a program; what it imported from the folder is forgotten afterwards."""
    monkeypatch.syspath_prepend(FOLDER)
    own = {path.stem for path in FOLDER.glob("*.py")}
    yield lambda name: partial(importlib.import_module("unfollowed").run, name)
    for name in own & set(sys.modules):
        del sys.modules[name]


def test_heads_that_are_mixed_are_shown_and_not_judged(program: Callable[..., Program]) -> None:
    calls = watched(program("TalkingHeads"))
    (row,) = calls
    assert (row.calls, str(row.sizes[1]), str(row.sizes[3]), row.verdict) == (1, "4", "12", "not checked")
    assert row.mask.startswith("not read: ")
    assert not row.findings
    assert calls.notes == []


@pytest.mark.parametrize("name", UNSEEN)
def test_what_cannot_be_followed_is_counted_in_one_line(name: str, program: Callable[..., Program]) -> None:
    calls = watched(program(name))
    (note,) = calls.notes
    what, line = re.fullmatch(r"(.*) at [^ ]*unfollowed\.py:(\d+)", note).groups()  # type: ignore[union-attr]
    assert what == UNSEEN[name]
    assert (FOLDER / "unfollowed.py").read_text().splitlines()[int(line) - 1].endswith("# <-")
    assert not calls


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_is_said_of_softmaxes_that_are_shown_or_weigh_nothing(
    name: str, program: Callable[..., Program]
) -> None:
    calls = watched(program(name))
    assert calls.notes == []
    assert not any(row.mask.startswith("not read") for row in calls)
    assert bool(calls) == (name == "Logged")
