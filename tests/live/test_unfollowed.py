"""Attention that cannot be followed is named, what cannot be read is not ok, and other softmaxes are left out."""

import re
from functools import partial
from pathlib import Path

import pytest
from watched_programs import Run, watched

PROGRAMS = ("unfollowed",)
SOURCE = Path(__file__).parent / "programs" / "unfollowed.py"
LOST = r"a softmax of \[12, 12, 7\] at [^ ]*unfollowed\.py:(\d+) is not shown, as attn could not follow it from .*"


def test_heads_that_are_mixed_are_shown_and_not_judged(programs: dict[str, Run]) -> None:
    calls = watched(partial(programs["run"], "TalkingHeads"))
    (row,) = calls
    assert (row.calls, str(row.sizes[1]), str(row.sizes[3]), row.verdict) == (1, "4", "12", "not checked")
    assert row.mask.startswith("not read: ")
    assert not row.findings
    assert calls.notes == []


def test_what_cannot_be_followed_is_named_with_its_line(programs: dict[str, Run]) -> None:
    calls = watched(partial(programs["run"], "Band"))
    (note,) = calls.notes
    (line,) = re.fullmatch(LOST, note).groups()
    assert SOURCE.read_text().splitlines()[int(line) - 1].endswith("# <-")
    assert not calls


@pytest.mark.parametrize("name", ["Logged", "Matched"])
def test_nothing_is_said_of_softmaxes_that_are_shown_or_weigh_nothing(name: str, programs: dict[str, Run]) -> None:
    calls = watched(partial(programs["run"], name))
    assert calls.notes == []
    assert not any(row.mask.startswith("not read") for row in calls)
    assert bool(calls) == (name == "Logged")
