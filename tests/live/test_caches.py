"""Generation with caches of every kind: what is right is called causal and not accused, what is wrong is found."""

import pytest
from watched_programs import Run, errors, watched

PROGRAMS = ("caches",)


CAUSAL = """
    hf_static_chunks slots slots_by_a_hint rows_of_their_own_lengths
""".split()
PADDED = ["hf_generate_static", "prompts_of_one_length", "padded_prompts"]
OTHERS = ["hf_sliding", "hf_translating", "rolling", "source_of_fixed_length"]


@pytest.mark.parametrize("name", CAUSAL)
def test_what_a_static_cache_holds_is_seen_causally(name: str, programs: dict[str, Run]) -> None:
    calls = watched(programs[name])
    assert {row.mask for row in calls} == {"causal"}
    assert not [one for one in calls.findings if one.severity == "error"]
    assert errors(programs[name], "causal") == []


@pytest.mark.parametrize("name", PADDED)
def test_padding_in_a_cache_is_not_accused(name: str, programs: dict[str, Run]) -> None:
    assert errors(programs[name]) == errors(programs[name], "causal & pad") == []


@pytest.mark.parametrize("name", OTHERS)
def test_other_caches_are_not_accused(name: str, programs: dict[str, Run]) -> None:
    assert errors(programs[name]) == []


def test_slots_that_are_not_filled_and_seen_are_found(programs: dict[str, Run]) -> None:
    assert {*errors(lambda: programs["slots"](True))} == {"cache"}


def test_padding_of_a_prompt_that_is_forgotten_behind_it_is_found(programs: dict[str, Run]) -> None:
    calls = watched(lambda: programs["padded_prompts"](is_masked=False))
    with pytest.raises(AssertionError, match="attends to padding in 3 cells, in batch rows 1-2"):
        calls.check("causal & pad")
