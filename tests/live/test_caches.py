"""Generation with caches of every kind: what is right is called causal and not accused.

What is wrong, and padding in a cache, is in tests/live/programs/public_twins.py and public_models.py.
"""

import pytest
from watched_programs import Run, errors, watched

PROGRAMS = ("caches",)
EXPECTED = {
    "hf_static_chunks": "causal", "rows_of_their_own_lengths": "causal", "hf_generate_static": "causal & pad",
    "hf_sliding": None, "hf_translating": None, "rolling": None, "source_of_fixed_length": None,
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_a_cache_is_not_accused(name: str, programs: dict[str, Run]) -> None:
    assert errors(programs[name]) == errors(programs[name], EXPECTED[name]) == []
    if EXPECTED[name] == "causal":
        assert {row.mask for row in watched(programs[name])} == {"causal"}
