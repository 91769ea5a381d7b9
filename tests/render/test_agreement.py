"""Agreement as a table, in words and as a document."""

from __future__ import annotations

import json
from math import inf

import pytest
from running import plain, printed

from attncli.analysis.agreement.compare import Agreement, Cause, Parting
from attncli.analysis.agreement.question import Cell
from attncli.formats.documents import write_agreement
from attncli.render.agreement import agreement_parts, sentences
from attncli.render.palette import Palette

SAME, CLOSE, APART = Cell(0.0, None, agrees=True), Cell(2e-7, 1e-7, agrees=True), Cell(0.5, 1e-7, agrees=False)
NAMES = ("input", "q_projected", "q_normed", "q", "scores", "weights", "attention", "next")


def agreement(cell: Cell, *partings: Parting, **cells: Cell) -> Agreement:
    """Two layers, of which the upper one has other cells."""
    rows = {0: dict.fromkeys(NAMES, cell), 1: dict.fromkeys(NAMES[:-1], cell) | cells}
    return Agreement(("a", "b"), "float32", rows, [*partings])


MASK = Parting("mask", [1], APART, Cause("mask", "full", "causal", 0.0))


@pytest.mark.parametrize("width", [40, 60, 80, None])
def test_a_table_is_one_table(width: int | None) -> None:
    result = agreement(CLOSE, MASK, weights=APART)
    lines = plain(printed(agreement_parts(result, Palette(), width), Palette())).splitlines()
    titles = [line.split() for line in lines if line.startswith("layer ")]
    every = ["layer", "input", "projections", "norm", "rotation", "scores", "mask", "weights", "output"]
    assert titles == [every if width is None or width > 70 else ["layer", "mask"]]
    assert lines[-2].split()[0] == "1"


@pytest.mark.parametrize(
    ("result", "titles"),
    [(agreement(SAME), None), (agreement(CLOSE), len(NAMES)), (agreement(SAME, MASK, weights=APART), 3)],
)
def test_columns_of_zeros_are_left_out(result: Agreement, titles: int | None) -> None:
    text = printed(agreement_parts(result, Palette(), None), Palette())
    found = [len(line.split()) for line in text.splitlines() if line.startswith("layer ")]
    assert found == ([] if titles is None else [titles])
    every = "input, projections, norm, rotation, scores, weights, output"
    assert f"compared: layers 0-1: {every}\n" in text


def test_layers_with_other_stages_are_told_apart() -> None:
    result = Agreement(("a", "b"), "float32", {0: {"input": SAME, "next": SAME}, 1: {"input": SAME}})
    text = printed(agreement_parts(result, Palette(), None), Palette())
    assert "compared: layer 0: input, output · layer 1: input\n" in text


def test_a_stage_without_an_array_shows_the_first_that_it_changes() -> None:
    """A mask shows in the weights, a hint of q in its rotation; the red number is that of its own layer."""
    mask = agreement(SAME, Parting("mask", [0, 1], APART), weights=Cell(0.7, 1e-7, agrees=False))
    mask.rows[0]["weights"] = APART
    hint = agreement(SAME, Parting("projections", [1], APART), q=APART)
    for result, numbers in ((mask, ["0.5", "0.7"]), (hint, ["0", "0.5"])):
        lines = printed(agreement_parts(result, Palette(), None), Palette()).splitlines()
        assert [line.split()[1] for line in lines if line.strip()[:1] in ("0", "1")] == numbers


def test_a_screen_reader_gets_a_sentence_for_each_layer() -> None:
    text = printed(agreement_parts(agreement(SAME, MASK, weights=APART), Palette("plain"), None), Palette("plain"))
    assert "layer 1, mask 0.5, weights 0.5" in text.splitlines()


def test_undone_is_said_of_proved_causes_alone() -> None:
    unproved = Parting("projections", [0], APART)
    hint = Parting("projections", [0], APART, Cause("projection weights of q", "changed", "", None))
    parted = sentences(agreement(SAME, unproved, hint, MASK, Parting("output", [1], APART)))
    assert [sentence.startswith("With that undone: ") for sentence in parted] == [False, False, False, True]


def test_a_document_has_numbers_or_null() -> None:
    nan = Cell(inf, inf, agrees=False)
    document = json.loads(write_agreement(agreement(SAME, Parting("output", [1], nan), next=nan)))
    assert (document["partings"][0]["difference"], document["partings"][0]["rounding"]) == (None, None)
    assert document["layers"][1]["arrays"]["layer_output"] == {"difference": None, "rounding": None, "agrees": False}
