"""Generation with caches of every kind: what is right is called causal and not accused, what is wrong is found."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from watched_programs import Run, errors, programs_of, watched

FOLDER = Path(__file__).parent / "programs"


@pytest.fixture(scope="module")
def programs() -> Iterator[dict[str, Run]]:
    """The functions of the programs by their names."""
    yield from programs_of(FOLDER, "caches")


CAUSAL = """
    hf_static_sdpa hf_static_chunks hf_static_gpt2 slots slots_from_the_second gpt_fast slots_in_chunks slots_by_one
    slots_by_a_hint rows_of_their_own_lengths
""".split()
JOINED = ["joined", "the_same_word_again", "positions_again", "hf_positions_again"]
PADDED = ["hf_static_left_padded", "hf_generate_static", "hf_generate"]
OTHERS = ["hf_sliding", "hf_translating", "rolling", "source_of_fixed_length"]
WRONG = {
    "slots": "cache", "slots_from_the_second": "cache", "joined": "cache", "positions_again": "positions",
    "hf_positions_again": "positions",
}  # fmt: skip


@pytest.mark.parametrize("name", CAUSAL)
def test_what_a_static_cache_holds_is_seen_causally(name: str, programs: dict[str, Run]) -> None:
    calls = watched(programs[name])
    assert {row.mask for row in calls} == {"causal"}
    assert not [one for one in calls.findings if one.severity == "error"]
    assert errors(programs[name], "causal") == []


@pytest.mark.parametrize("name", JOINED)
def test_what_is_joined_to_a_cache_is_not_accused(name: str, programs: dict[str, Run]) -> None:
    assert errors(programs[name]) == errors(programs[name], "causal") == []


@pytest.mark.parametrize("name", PADDED)
def test_padding_in_a_cache_is_not_accused(name: str, programs: dict[str, Run]) -> None:
    assert errors(programs[name]) == errors(programs[name], "causal & pad") == []


@pytest.mark.parametrize("name", OTHERS)
def test_other_caches_are_not_accused(name: str, programs: dict[str, Run]) -> None:
    assert errors(programs[name]) == []


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_cache_is_found(name: str, programs: dict[str, Run]) -> None:
    assert {*errors(lambda: programs[name](True))} == {WRONG[name]}
