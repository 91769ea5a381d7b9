"""Designs held against the expressions that say them: nothing is accused, in any style, with and without padding."""

import importlib
import sys
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import attncli
from attncli.analysis.calls.calls import Calls
from attncli.cli.pytest_plugin import Attention
from attncli.recording.watch import watching

NAMES = (
    "lookahead", "backward", "backward by its band", "both sides", "class token", "sinks", "prefix", "documents",
    "dilated", "cloze", "causal", "full",
)  # fmt: skip
SIDES, PADDING_IDS = ("right", "left"), (0, None)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The programs; what they imported is forgotten afterwards."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "programs")
    yield importlib.import_module("expected_designs")
    for name in ("expected_designs", "step"):
        del sys.modules[name]


def watched(run: Callable[[], Any], expect: str | None = None) -> Calls:
    calls = Calls(expect)
    torch.manual_seed(0)
    with watching(calls.take, hints=calls.here):
        run()
    calls.finish()
    return calls


def errors(calls: Calls) -> list[str]:
    return [f"{one.code}: {one.message}" for one in calls.findings if one.severity == "error"]


def accusations(run: Callable[[], Any], expect: str, lengths: torch.Tensor | None = None) -> list[str]:
    """What is wrong with a program by itself and beside what is expected, and what a test says of it."""
    alone, held = watched(run), watched(run, expect)
    found = errors(alone) + errors(held)
    found += [one.message for one in held.findings if one.code == "leak"]  # a note beside what is expected
    for more in [None] if lengths is None else [None, lengths]:
        try:
            Attention(alone).check(expect, lengths=more)
        except AssertionError as error:
            found.append(str(error))
    return found


def tokens(programs: ModuleType, side: str) -> torch.Tensor:
    real = torch.arange(programs.T) < torch.tensor(programs.LENGTHS)[:, None]
    return real if side == "right" else real.flip(1)


def padded(expression: str) -> str:
    return f"({expression}) & pad" if "|" in expression else f"{expression} & pad"


def test_all_designs_are_looked_at(programs: ModuleType) -> None:
    assert {*NAMES} == {*programs.DESIGNS}


@pytest.mark.parametrize("name", NAMES)
def test_a_design_is_right_in_every_style(name: str, programs: ModuleType) -> None:
    expect = programs.DESIGNS[name].expression
    runs = [lambda style=style: programs.written(name, style) for style in programs.STYLES]
    runs += [lambda is_number=is_number: programs.of_torch(name, is_number=is_number) for is_number in (False, True)]
    for run in runs:
        assert accusations(run, expect) == []
        assert errors(watched(run, "window(2)")), "another design is one"


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", NAMES)
def test_a_design_is_right_with_padding(name: str, side: str, programs: ModuleType) -> None:
    """Whatever the queries of padding see, and whoever says where it is."""
    expect, lengths = padded(programs.DESIGNS[name].expression), tokens(programs, side)
    styles = islice(cycle(programs.STYLES), NAMES.index(name) + SIDES.index(side), None)  # each trick in other styles
    for trick in programs.TRICKS:
        for padding_idx in PADDING_IDS:
            style = next(styles)
            found = accusations(lambda: programs.written(name, style, side, trick, padding_idx), expect, lengths)  # noqa: B023  # it is called here
            assert found == [], (style.__name__, trick.__name__, padding_idx)
    for padding_idx, is_number in ((0, True), (None, False)):
        found = accusations(lambda: programs.of_torch(name, side, padding_idx, is_number), expect, lengths)  # noqa: B023
        assert found == [], (padding_idx, is_number)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", NAMES)
def test_padding_that_words_see_is_an_error(name: str, side: str, programs: ModuleType) -> None:
    design, lengths = programs.DESIGNS[name], tokens(programs, side)

    def run() -> Any:
        return programs.written(name, programs.by_sdpa, side, lambda allowed, _: allowed[None])

    is_seen = bool((design.allowed & ~lengths[:, None] & lengths[:, :, None]).any())
    assert ("pad" in {one.code for one in watched(run, padded(design.expression)).findings}) == is_seen
    if is_seen:
        with pytest.raises(AssertionError, match="attends to padding"):
            Attention(watched(run)).check(padded(design.expression), lengths=lengths)
    else:
        Attention(watched(run)).check(padded(design.expression), lengths=lengths)


@pytest.mark.parametrize("side", [None, *SIDES])
def test_a_token_may_attend_to_itself_as_a_last_resort(side: str | None, programs: ModuleType) -> None:
    expect = "causal & ~window(1)" + (" & pad" if side else "")
    assert accusations(lambda: programs.shared(side), expect, tokens(programs, side) if side else None) == []


@pytest.mark.parametrize("length", [1, 2, 8])
def test_sentences_of_one_length_have_no_padding_to_be_hidden(length: int, programs: ModuleType) -> None:
    """An embedding with a `padding_idx` says so of a prompt, and what is generated is no padding."""
    assert accusations(lambda: programs.generated(length), "causal & pad") == []


def test_the_padding_of_a_prompt_stays_in_the_cache(programs: ModuleType) -> None:
    assert accusations(lambda: programs.generated(is_padded=True), "causal & pad") == []
    with pytest.raises(AssertionError, match="attends to padding in 5 cells, in batch rows 1-2"):
        watched(lambda: programs.generated(is_padded=True, is_masked=False)).check("causal & pad")


def test_watching_changes_no_bit(programs: ModuleType) -> None:
    runs = [lambda style=style: programs.written("causal", style, "left") for style in programs.STYLES]
    for run in [*runs, lambda: programs.of_torch("causal", "right"), programs.shared, programs.generated]:
        torch.manual_seed(0)
        alone = [*run(), torch.get_rng_state()]
        seen: list[torch.Tensor] = []
        with attncli.watch():
            torch.manual_seed(0)
            seen += [*run(), torch.get_rng_state()]
        assert all(torch.equal(one, other) for one, other in zip(alone, seen, strict=True))
