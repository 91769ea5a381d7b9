"""Programs that attend in every usual way, right once and wrong in many ways: what watching them finds, and where."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from watched_programs import Run, watched

import attncli

PROGRAMS = ("sdpa", "mha", "handwritten")
FOLDER = Path(__file__).parent / "programs"


class Wrong(NamedTuple):
    name: str  # of its function
    code: str  # of the finding, at the line with the comment `# <-` in what the function names
    expect: str | None = None  # what each of its calls is held against
    severity: str = "error"  # of the finding


NOTHING_TO_SEE = ["linear_attention", "pooling", "experts"]  # without weights of queries on keys
RIGHT = (
    """
    nanogpt causal_and_padding in_a_thread autocast compiled scripted
    in_evaluation causal_hint encoder_in_evaluation nested_encoder transformer
    rotary_in_half cross_attention batched_products multiplied_and_added renormalized
""".split()
    + NOTHING_TO_SEE
)
WRONG = [
    Wrong("too_large_for_half", "overflow"), Wrong("one_column", "broadcast"),
    Wrong("norm_of_zeros", "nan", severity="note"), Wrong("hint_beside_another_mask", "backend"),
    Wrong("decoder_without_a_mask", "leak", "causal"), Wrong("fast_path_without_padding", "pad", "pad"),
    Wrong("minus_one", "added-bool"),
]  # fmt: skip


def marked(function: Callable[..., Any]) -> set[str]:
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
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_has_no_error(name: str, programs: dict[str, Run]) -> None:
    calls = watched(programs[name])
    assert bool(calls) == (name not in NOTHING_TO_SEE)
    assert not [finding for finding in calls.findings if finding.severity == "error"]
    assert not [note for note in calls.notes if "softmax" in note]  # none is seen that is not shown


@pytest.mark.parametrize(("name", "is_noted"), [("compiled", True), ("nanogpt", False)])
def test_what_runs_eagerly_is_noted(name: str, is_noted: bool, programs: dict[str, Run]) -> None:
    with attncli.watch() as calls:
        programs[name]()
    assert any("eagerly" in note for note in calls.notes) == is_noted


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_what_is_wrong_is_found_where_it_is(wrong: Wrong, programs: dict[str, Run]) -> None:
    run = programs[wrong.name]
    watched(run)  # changes no bit of it
    calls = watched(run, wrong.expect)
    places = marked(run)
    found = [(one.code, one.severity, str(row.place)) for row in calls for one in row.findings]
    assert places
    assert [one for one in found if one[:2] == (wrong.code, wrong.severity) and one[2] in places], found
    assert not [one for one in found if one[1] == "error" and one[2] not in places]
