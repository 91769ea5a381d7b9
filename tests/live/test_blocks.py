"""Blocks of a longer attention are not held against what is expected of the whole; attention in parts is."""

from functools import partial

import pytest
from watched_programs import Run, watched

PROGRAMS = ("blocks",)
BLOCKS = ["ring", "scaled_before", "other_ranks", "split_keys", "query_slices", "two_lines"]
WHOLE = ["documents", "rows_of_the_batch", "halves_of_the_heads", "cached"]


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("expect", [None, "causal"])
def test_blocks_are_not_checked(name: str, expect: str | None, programs: dict[str, Run]) -> None:
    calls = watched(partial(programs["run"], programs[name]), expect)
    assert calls.findings == ()
    unchecked = [row.unchecked for row in calls if row.verdict == "not checked"]
    assert unchecked
    assert all(one is not None and "a block of a longer attention" in one.message for one in unchecked)


def test_blocks_alone_pass_no_check(programs: dict[str, Run]) -> None:
    calls = watched(partial(programs["run"], programs["split_keys"]))
    with pytest.raises(AssertionError, match="its calls are blocks of a longer attention"):
        calls.check("causal")


@pytest.mark.parametrize("name", WHOLE)
def test_parts_that_are_whole_are_checked(name: str, programs: dict[str, Run]) -> None:
    calls = watched(partial(programs["run"], programs[name]), "causal")
    assert {row.verdict for row in calls} == {"ok"}
    assert calls.findings == ()


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_wrong_in_such_a_part_is_found(name: str, programs: dict[str, Run]) -> None:
    wrong = partial(programs[name], is_causal=False)
    assert "leak" in {one.code for one in watched(partial(programs["run"], wrong), "causal").findings}
