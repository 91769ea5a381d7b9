"""Programs that attend in every usual way, right once and wrong in many ways: what watching them finds, and where."""

import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from whole_program import forked

import attncli
from attncli.analysis.calls.calls import Calls
from attncli.recording.watch import watching

FOLDER = Path(__file__).parent / "programs"


class Wrong(NamedTuple):
    """A program that is wrong.

    Attributes:
        module: the file of it.
        name: its function.
        code: of the finding; its place is the line with the comment `# <-` in the function or a class that it names.
        expect: what each of its calls is held against; None is nothing.
        severity: of the finding.
    """

    module: str
    name: str
    code: str
    expect: str | None = None
    severity: str = "error"


RIGHT = {
    "sdpa": """
        nanogpt full causal_booleans padding causal_and_padding left_padding grouped_heads lower_right in_a_thread
        autocast compiled packed window words_with_their_mask scripted scaled_before low_rank learned_temperature
    """,
    "mha": """
        in_training in_evaluation weights_of_each_head causal_hint memory no_batch masks_of_each_head function
        encoder_layer encoder_in_evaluation nested_encoder decoder_layer transformer
    """,
    "handwritten": """
        mingpt alibi rotary rotary_in_half cross_attention sliding_window t5 annotated_transformer batched_products
        picture_patches shifted_windows cosine_attention softcap masked_before_and_after zero_for_nan
        a_factor_for_each_head multiplied_and_added renormalized heads_last linear_attention pooling
        experts checkpointed classifier
    """,
    "flash": "causal cached",
    "flex": "causal_blocks distance_penalty padding",
    "models": """
        bert_eager bert_sdpa gpt2_eager gpt2_sdpa llama_eager llama_sdpa llama_left_padded llama_generating t5_eager
    """,
}

WRONG = [
    Wrong("sdpa", "forgot_the_mask", "leak", "causal"),
    Wrong("sdpa", "transposed", "leak", severity="note"),  # as a language model that reads backwards has it
    Wrong("sdpa", "mask_of_mha", "leak"),
    Wrong("sdpa", "padding_along_queries", "broadcast"),
    Wrong("sdpa", "causal_with_a_cache", "shape"),
    Wrong("sdpa", "nobody_to_attend_to", "dead-row", severity="note"),  # torch gives 0 there since 2.5, not NaN
    Wrong("sdpa", "too_large_for_half", "overflow"),
    Wrong("sdpa", "one_column", "broadcast"),
    Wrong("sdpa", "one_head", "varies", "causal"),
    Wrong("sdpa", "norm_of_zeros", "nan", severity="note"),
    Wrong("mha", "mask_of_sdpa", "leak"),
    Wrong("mha", "real_words_as_padding", "nan"),
    Wrong("mha", "numbers_as_padding", "added-bool"),
    Wrong("mha", "hint_beside_another_mask", "backend"),
    Wrong("mha", "masks_of_each_head_repeated_wrongly", "varies", severity="note"),
    Wrong("mha", "decoder_without_a_mask", "leak", "causal"),
    Wrong("mha", "fast_path_without_padding", "pad", "pad"),
    Wrong("handwritten", "booleans_added", "added-bool"),
    Wrong("handwritten", "zeros_and_ones_added", "added-bool"),
    Wrong("handwritten", "minus_forgotten", "leak"),
    Wrong("handwritten", "minus_one", "added-bool"),
    Wrong("handwritten", "mask_after_the_softmax", "after-softmax"),
    Wrong("handwritten", "mask_multiplied_after_the_softmax", "after-softmax"),
    Wrong("handwritten", "softmax_over_queries", "axis"),
    Wrong("handwritten", "softmax_over_heads", "axis"),
    Wrong("handwritten", "padding_rows_are_nan", "nan"),
    Wrong("handwritten", "inverted", "leak"),
    Wrong("handwritten", "least_number_twice", "double-fill"),
    Wrong("handwritten", "dropout_in_evaluation", "dropout"),
    Wrong("handwritten", "padding_along_queries", "broadcast"),
    Wrong("handwritten", "multiplied_scores", "no-mask"),
    Wrong("handwritten", "tiny_fill", "leak", "causal"),
    Wrong("flash", "not_causal", "leak", "causal"),
    Wrong("flex", "reversed_comparison", "leak", severity="note"),
    Wrong("flex", "window_off_by_one", "window", "causal & window(4)"),
    Wrong("models", "bert_without_its_attention_mask", "pad", "pad"),
]

NOTHING_TO_SEE = {"linear_attention", "pooling", "experts", "classifier"}
"""Programs without weights of queries on keys."""

RIGHT_ONES = [(module, name) for module, names in RIGHT.items() for name in names.split()]
EVERY = [*RIGHT_ONES, *((wrong.module, wrong.name) for wrong in WRONG)]


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


def watched(run: Callable[[], Any], expect: str | None = None) -> Calls:
    """The calls of a program, held against an expression."""
    calls = Calls(expect)
    torch.manual_seed(0)
    notes = calls.notes
    with watching(calls.take, notes=notes, hints=calls.here):
        run()
    calls.finish()
    return calls


def bits(tensor: torch.Tensor) -> tuple[Any, ...]:
    return *tensor.shape, tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def test_there_are_enough_of_them() -> None:
    assert len(set(EVERY)) == len(EVERY) >= 44
    assert len(WRONG) >= 20


@pytest.mark.parametrize("each", RIGHT_ONES, ids=named)
def test_a_right_program_has_no_error(each: tuple[str, str], program: Callable[..., Any]) -> None:
    calls = watched(program(*each))
    assert bool(calls) == (each[1] not in NOTHING_TO_SEE)
    assert not [finding for finding in calls.findings if finding.severity == "error"]
    assert not [note for note in calls.notes if "softmax" in note]  # none is seen that is not shown


@pytest.mark.parametrize(("name", "said"), [("compiled", True), ("checkpointed", False)])
def test_what_runs_eagerly_is_said(name: str, said: bool, program: Callable[..., Any]) -> None:
    with attncli.watch() as calls:
        program("sdpa" if said else "handwritten", name)()
    assert any("eagerly" in note for note in calls.notes) == said


@pytest.mark.parametrize("wrong", WRONG, ids=named)
def test_what_is_wrong_is_found_where_it_is(wrong: Wrong, program: Callable[..., Any]) -> None:
    run = program(wrong.module, wrong.name)
    calls = watched(run, wrong.expect)
    places = marked(run)
    found = [(one.code, one.severity, str(row.place)) for row in calls for one in row.findings]
    assert places
    assert [one for one in found if one[:2] == (wrong.code, wrong.severity) and one[2] in places], found
    assert not [one for one in found if one[1] == "error" and one[2] not in places]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's compiler looks at every one
@pytest.mark.parametrize("each", EVERY, ids=named)
def test_watching_changes_no_bit(each: tuple[str, str], program: Callable[..., Any]) -> None:
    run = program(*each)
    results = []
    for is_watched in (False, True):
        torch.manual_seed(0)
        if is_watched:
            with attncli.watch():
                tensors = run()
        else:
            # What a program compiles runs eagerly while it is watched, and a note says so.
            with torch.compiler.set_stance("force_eager"):
                tensors = run()
        results.append([*tensors, torch.get_rng_state()])
    alone, watched = results
    assert [one.dtype for one in alone] == [one.dtype for one in watched]
    assert [bits(one) for one in alone] == [bits(one) for one in watched]


@pytest.mark.parametrize(
    "wrong",
    [one for one in WRONG if one.name in {"forgot_the_mask", "padding_along_queries", "booleans_added"}],
    ids=named,
)
def test_one_command_finds_it(wrong: Wrong, program: Callable[..., Any]) -> None:
    command = ["run", "-F", "json", "--fail-on", wrong.code]
    command += ["--expect", wrong.expect] if wrong.expect else []
    command += [str(FOLDER.relative_to(Path.cwd()) / f"{wrong.module}.py"), wrong.name]
    finished = forked(*command)
    assert finished.returncode == 1
    output, *_ = program(wrong.module, wrong.name)()
    assert finished.stdout.split() == [str(size) for size in output.shape]
    document = json.loads(finished.stderr)
    found = {(place["place"], one["code"]) for place in document["places"] for one in place["findings"]}
    assert found >= {(place, wrong.code) for place in marked(program(wrong.module, wrong.name))}
