"""Padding that one part of a program knows of and another does not, and positions that count it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from watched_programs import Run, errors, programs_of

FOLDER = Path(__file__).parent / "programs"

WRONG = ["translator", "hf_t5", "hf_llama", "classifier"]
DESIGNS = """
    right_padded residual_inside recommended_without_a_mask llama_in_training two_towers board
    padding_that_begins_sentences t5_for_pictures layers_that_see_more pooled windows_as_heads two_passes
""".split()


@pytest.fixture(scope="module")
def programs() -> Iterator[dict[str, Run]]:
    """The functions of the programs by their names."""
    yield from programs_of(FOLDER, "paddings")


@pytest.mark.parametrize("name", WRONG)
def test_padding_that_is_not_hidden_is_found(name: str, programs: dict[str, Run]) -> None:
    assert {*errors(lambda: programs[name](True))} == {"pad"}


@pytest.mark.parametrize("name", [*WRONG, *DESIGNS])
def test_padding_that_is_hidden_or_meant_is_not_accused(name: str, programs: dict[str, Run]) -> None:
    assert errors(programs[name]) == []
