"""Calls behind a cache beside the calls before: their window, bias and rotary positions."""

import pytest
from watched_programs import Run, errors, watched

PROGRAMS = ("caches", "continuing")
WRONG = {
    "window_of_one_query": "window",
    "window_of_a_chunk": "window",
    "window_on_another_line": "window",
    "bias_of_the_first_query": "bias",
    "bias_dropped": "bias",
    "slopes_of_other_heads": "bias",
    "counted_twice": "positions",
    "begun_again": "positions",
    "stands_still": "positions",
    "keys_from_the_beginning": "positions",
    "padded_row": "positions",
}
DESIGNS = ["bias_by_the_key", "all_keys_again", "stretched", "new_prompts"]
# Generation with caches of every kind, and what is expected of it.
CACHES = {
    "hf_static_chunks": "causal", "rows_of_their_own_lengths": "causal", "hf_generate_static": "causal & pad",
    "hf_sliding": None, "hf_translating": None, "rolling": None, "source_of_fixed_length": None,
}  # fmt: skip


@pytest.mark.parametrize("name", CACHES)
def test_a_cache_is_not_accused(name: str, programs: dict[str, Run]) -> None:
    assert errors(programs[name]) == errors(programs[name], CACHES[name]) == []
    if CACHES[name] == "causal":
        assert {row.mask for row in watched(programs[name])} == {"causal"}


@pytest.mark.parametrize("name", WRONG)
def test_what_contradicts_the_calls_before_is_found(name: str, programs: dict[str, Run]) -> None:
    assert {*errors(lambda: programs[name](True))} == {WRONG[name]}


@pytest.mark.parametrize("name", [*WRONG, *DESIGNS])
def test_what_goes_on_as_it_began_is_not_accused(name: str, programs: dict[str, Run]) -> None:
    assert errors(programs[name]) == []


@pytest.mark.parametrize(("name", "message"), [
    ("window_of_one_query", "sees 5 keys outside of the window(4) of the calls before"),
    ("bias_dropped", "no bias is added behind a cache, and the calls before add one"),
    ("counted_twice", "queries behind a cache are rotated as positions 8 to 11, and the last one before as 3"),
    ("stands_still", "queries behind a cache are rotated as position 6, and the last one before as 6"),
    ("keys_from_the_beginning", "keys behind a cache are rotated as position 0, and the last one before as 5"),
])  # fmt: skip
def test_both_numbers_are_told(name: str, message: str, programs: dict[str, Run]) -> None:
    assert message in [one.message for one in watched(lambda: programs[name](True)).findings]
