"""Language models that are trained: a query that sees the token that the loss asks it for is found, and no other."""

import importlib
import inspect
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch
from watched_programs import watched

import attncli
from attncli.analysis.calls.calls import Calls

FOLDER = Path(__file__).parent / "programs"

LANGUAGE_MODELS = "nanogpt mingpt llama one_layer prefix translator one_table".split()
OTHERS = "masked_words both_directions one_word counting weighted_prefix padding_sees_all picture_in_text".split()


@pytest.fixture(scope="module")
def programs() -> Iterator[ModuleType]:
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("objectives")
    sys.path.remove(str(FOLDER))
    del sys.modules["objectives"]


def errors(calls: Calls) -> list[str]:
    return [one.code for one in calls.findings if one.severity == "error"]


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_a_right_language_model_has_no_error(name: str, programs: ModuleType) -> None:
    calls = watched(partial(getattr(programs, name), False))
    assert errors(calls) == []


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_a_token_that_is_seen_and_asked_for_is_a_leak(name: str, programs: ModuleType) -> None:
    calls = watched(partial(getattr(programs, name), True))
    assert {*errors(calls)} == {"leak"}


@pytest.mark.parametrize("name", ["translator", "one_table"])
def test_neither_the_encoder_nor_what_looks_at_it_is_accused(name: str, programs: ModuleType) -> None:
    lines, first = inspect.getsourcelines(getattr(programs, name))
    (own,) = (first + n for n, line in enumerate(lines) if "# <-" in line and "attn_mask" in line)
    calls = watched(partial(getattr(programs, name), True))
    assert {row.place.line for row in calls if any(one.severity == "error" for one in row.findings)} == {own}


def test_one_layer_of_three_is_named(programs: ModuleType) -> None:
    calls = watched(partial(programs.one_layer, True))
    wrong = [
        track.place.module for track in calls.tracks if any(one.finding.code == "leak" for one in track.all_noticed)
    ]
    assert wrong == ["blocks.1.attn"]


def test_cells_are_counted(programs: ModuleType) -> None:
    calls = watched(partial(programs.prefix, True))
    (finding,) = (one for one in calls.findings if one.code == "leak")
    assert (finding.count, finding.cells) == (1, ((4, 5),))
    assert "in 1 cell" in finding.message


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_asked_for_may_be_seen(name: str, programs: ModuleType) -> None:
    calls = watched(getattr(programs, name))
    assert errors(calls) == []
    assert not any("the loss asks for" in one.message for one in calls.findings)


def test_a_module_that_is_watched_alone_is_held_against_a_loss_outside_of_it(programs: ModuleType) -> None:
    model, ids = programs.Model(programs.FULL), programs.words()
    with attncli.watch(model) as calls:
        programs.asked(model, model(ids)[:, :-1], ids[:, 1:])
    assert errors(calls) == ["leak"]


def test_without_gradients_nothing_is_said(programs: ModuleType) -> None:
    model, ids = programs.Model(programs.FULL), programs.words()
    with attncli.watch() as calls, torch.no_grad():
        torch.nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert errors(calls) == []
