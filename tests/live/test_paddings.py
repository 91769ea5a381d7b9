"""Padding that one part of a program knows of and another does not, and positions that count it."""

import pytest
from watched_programs import Run, errors, watched

from attncli.analysis.calls.calls import Calls

PROGRAMS = ("paddings",)

WRONG = ["translator", "hf_t5", "hf_llama", "classifier"]
DESIGNS = """
    right_padded residual_inside recommended_without_a_mask llama_in_training two_towers board
    padding_that_begins_sentences t5_for_pictures layers_that_see_more pooled windows_as_heads two_passes
    latents mask_of_a_batch_without_padding mask_of_the_loss
""".split()
STATED = {
    "picture_before_text": "(causal | prefix(5)) & pad", "mask_for_each_row": "causal & pad",
    "padding_mask_of_torch": "pad", "speech": "pad",
}  # fmt: skip
"""Programs whose padding only an argument of the model states, and what is expected of them."""

HIDDEN_WORDS = "hides 7 keys from every query that the embedding's padding_idx does not mark as padding"
NOTES = {
    "picture_before_text": "attends to padding that the model's attention_mask argument marks, in batch row 1",
    "mask_for_each_row": "attends to padding that the model's attention_mask argument marks, in batch row 1",
    "padding_mask_of_torch": "attends to padding that the model's src_key_padding_mask argument marks, in batch rows",
    "speech": "attends to padding that the model's lengths argument marks, in batch rows 1-2",
    "cut_mask": HIDDEN_WORDS,
    "cut_by_the_first_row": "the embedding's padding_idx leaves 3 and 7 words of 7 positions, and 3 keys",
    "picture_and_text": "the embedding's padding_idx leaves 3 and 7 words of 7 positions, and 11 keys",
}


def codes_of_padding(calls: Calls) -> set[str]:
    return {one.code for one in calls.findings} & {"pad", "missing", "not checked"}


@pytest.mark.parametrize("name", WRONG)
def test_padding_that_is_not_hidden_is_found(name: str, programs: dict[str, Run]) -> None:
    assert {*errors(lambda: programs[name](True))} == {"pad"}


@pytest.mark.parametrize("name", [*WRONG, *DESIGNS])
def test_padding_that_is_hidden_or_meant_is_not_accused(name: str, programs: dict[str, Run]) -> None:
    assert errors(programs[name]) == []


@pytest.mark.parametrize("name", STATED)
def test_padding_is_what_the_model_is_called_with(name: str, programs: dict[str, Run]) -> None:
    assert {*errors(lambda: programs[name](True), STATED[name])} == {"pad"}
    right = watched(programs[name], STATED[name])
    assert {row.verdict for row in right} == {"ok"}
    assert not codes_of_padding(right)


@pytest.mark.parametrize("name", NOTES)
def test_padding_that_is_stated_is_told_without_an_expectation(name: str, programs: dict[str, Run]) -> None:
    assert errors(lambda: programs[name](True)) == []
    assert any(NOTES[name] in one.message for one in watched(lambda: programs[name](True)).findings)
    assert not codes_of_padding(watched(programs[name]))


@pytest.mark.parametrize("name", ["cut_by_the_first_row", "picture_and_text"])
def test_words_that_are_no_keys_of_their_own_cannot_be_checked(name: str, programs: dict[str, Run]) -> None:
    (finding,) = watched(lambda: programs[name](True), "pad").findings
    assert (finding.code, finding.severity, finding.advice) == ("pad", "error", None)
    begin = "cannot check `pad`" if name == "cut_by_the_first_row" else "attends to padding, wherever it is"
    assert finding.message.startswith(f"{begin}: the embedding's padding_idx leaves 3 and 7 words")
    assert errors(programs[name], "pad") == []


def test_rows_that_are_padded_in_another_order_are_not_checked(programs: dict[str, Run]) -> None:
    assert errors(programs["sorted_batch"], "pad") == []
    (message,) = {one.message for one in watched(programs["sorted_batch"], "pad").findings}
    assert message.endswith("padded like those of the model's input, in another order")


@pytest.mark.parametrize("name", ["latents", "mask_of_a_batch_without_padding"])
def test_padding_that_nothing_says_is_not_checked(name: str, programs: dict[str, Run]) -> None:
    expect = "pad" if name == "latents" else "causal & pad"
    assert errors(programs[name], expect) == []
    assert "not checked" in {row.verdict for row in watched(programs[name], expect)}
