"""Programs that attend in every usual way, right once and wrong in many ways: what watching them finds, and where."""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from watched_programs import watched

import attncli

FOLDER = Path(__file__).parent / "programs"


class Wrong(NamedTuple):
    """A program that is wrong."""

    module: str  # the file of it
    name: str  # of its function
    code: str  # of the finding, at the line with the comment `# <-` in what the function names
    expect: str | None = None  # what each of its calls is held against
    severity: str = "error"  # of the finding


RIGHT = {
    "sdpa": "nanogpt causal_booleans causal_and_padding grouped_heads in_a_thread autocast compiled scripted",
    "mha": "in_training in_evaluation causal_hint encoder_in_evaluation nested_encoder transformer",
    "handwritten": """
        mingpt rotary rotary_in_half cross_attention t5 batched_products
        multiplied_and_added renormalized linear_attention pooling experts checkpointed
    """,
    "models": "bert_eager gpt2_sdpa llama_left_padded t5_eager",
}
WRONG = [
    Wrong("sdpa", "too_large_for_half", "overflow"),
    Wrong("sdpa", "one_column", "broadcast"),
    Wrong("sdpa", "norm_of_zeros", "nan", severity="note"),
    Wrong("mha", "hint_beside_another_mask", "backend"),
    Wrong("mha", "decoder_without_a_mask", "leak", "causal"),
    Wrong("mha", "fast_path_without_padding", "pad", "pad"),
    Wrong("handwritten", "minus_one", "added-bool"),
]

NOTHING_TO_SEE = {"linear_attention", "pooling", "experts"}
"""Programs without weights of queries on keys."""


def named(each: Any) -> str:
    return f"{each[0]}-{each[1]}"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Callable[[], list[torch.Tensor]]]]:
    """Give a function that imports a program; what it imported from the folder is forgotten afterwards."""
    monkeypatch.syspath_prepend(FOLDER)
    own = {path.stem for path in FOLDER.glob("*.py")}
    assert not own & set(sys.modules)
    yield lambda module, name: getattr(importlib.import_module(module), name)
    for name in own & set(sys.modules):
        del sys.modules[name]


def marked(function: Callable[..., Any]) -> set[str]:
    """The lines with the comment `# <-` of a function and of the classes and functions that it names."""
    function = inspect.unwrap(function)
    code = function.__code__
    inner = [const for const in code.co_consts if inspect.iscode(const)]
    names = {name for each in [code, *inner] for name in each.co_names}
    called = [each for name, each in function.__globals__.items() if name in names]
    places = set()
    for each in [function, *(each for each in called if inspect.isfunction(each) or inspect.isclass(each))]:
        file = Path(inspect.getsourcefile(each) or "")
        if file.parent == FOLDER:
            lines, first = inspect.getsourcelines(each)
            shown = file.relative_to(Path.cwd()).as_posix()
            places |= {f"{shown}:{first + n}" for n, line in enumerate(lines) if "# <-" in line}
    return places


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's compiler looks at every one
@pytest.mark.parametrize(
    "each", [(module, name) for module, names in RIGHT.items() for name in names.split()], ids=named
)
def test_a_right_program_has_no_error(each: tuple[str, str], program: Callable[..., Any]) -> None:
    calls = watched(program(*each))
    assert bool(calls) == (each[1] not in NOTHING_TO_SEE)
    assert not [finding for finding in calls.findings if finding.severity == "error"]
    assert not [note for note in calls.notes if "softmax" in note]  # none is seen that is not shown


@pytest.mark.parametrize(("name", "is_noted"), [("compiled", True), ("checkpointed", False)])
def test_what_runs_eagerly_is_noted(name: str, is_noted: bool, program: Callable[..., Any]) -> None:
    with attncli.watch() as calls:
        program("sdpa" if is_noted else "handwritten", name)()
    assert any("eagerly" in note for note in calls.notes) == is_noted


@pytest.mark.parametrize("wrong", WRONG, ids=named)
def test_what_is_wrong_is_found_where_it_is(wrong: Wrong, program: Callable[..., Any]) -> None:
    run = program(wrong.module, wrong.name)
    watched(run)  # changes no bit of it
    calls = watched(run, wrong.expect)
    places = marked(run)
    found = [(one.code, one.severity, str(row.place)) for row in calls for one in row.findings]
    assert places
    assert [one for one in found if one[:2] == (wrong.code, wrong.severity) and one[2] in places], found
    assert not [one for one in found if one[1] == "error" and one[2] not in places]
