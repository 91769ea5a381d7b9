"""Calls behind a cache beside the calls before: later keys, window, bias and rotary positions; and repeated batches."""

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
    "beams": "batch",
    "beams_with_cached_memory": "batch",
    "several_answers": "batch",
}
DESIGNS = ["bias_by_the_key", "all_keys_again", "stretched", "new_prompts", "longer_and_longer"]
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


def test_later_keys_that_the_calls_before_hide_are_a_note_without_an_expectation(programs: dict[str, Run]) -> None:
    wrong, right = (lambda: programs["chunk_without_a_mask"](True)), programs["chunk_without_a_mask"]
    noted = [(one.code, one.severity) for one in watched(wrong).findings if "the calls before it hide" in one.message]
    assert noted == [("leak", "note")]
    assert errors(wrong, "causal") == ["leak"]
    assert not watched(right).findings
    assert {row.verdict for row in watched(right, "causal")} == {"ok"}


@pytest.mark.parametrize(("name", "message"), [
    ("window_of_one_query", "sees 5 keys outside of the window(4) of the calls before"),
    ("bias_dropped", "no bias is added behind a cache, and the calls before add one"),
    ("counted_twice", "queries behind a cache are rotated as positions 8 to 11, and the cache ends at 3"),
    ("stands_still", "queries behind a cache are rotated as position 6, and the cache ends at 6"),
    ("keys_from_the_beginning", "keys behind a cache are rotated as position 0, and the cache ends at 5"),
])  # fmt: skip
def test_both_numbers_are_told(name: str, message: str, programs: dict[str, Run]) -> None:
    assert message in [one.message for one in watched(lambda: programs[name](True)).findings]
