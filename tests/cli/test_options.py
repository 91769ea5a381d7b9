"""Options: those of the sources and of Python, one for each field of a group; what does not apply is refused."""

import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from refusals import USAGE, refused

from attncli.analysis.learn import LESSONS
from attncli.checkpoints.options import EngineOptions, Kind, ToyOptions
from attncli.cli import options
from attncli.cli.applicability import TABLE
from attncli.cli.commands.learn import learn
from attncli.cli.groups import choices_of, kind_of, options_of
from attncli.render.palette import COLORMAPS
from attncli.trace.display import Drawable
from attncli.trace.view import Ramp

Run = Callable[..., Any]


def names(*groups: Any) -> set[str]:
    return {name for group in groups for name, _, _ in options_of(group)}


def texts_of(kind: Any) -> set[str]:
    """Every text that a type allows."""
    if get_origin(kind) is Literal:
        return set(get_args(kind))
    return set().union(*map(texts_of, get_args(kind)))


def test_the_command_line_and_python_have_the_same_options_and_choices() -> None:
    python = get_type_hints(EngineOptions) | get_type_hints(ToyOptions) | {"kind": Kind}
    assert names(options.Engine, options.Toy) - python.keys() == set()
    for group in (options.Engine, options.Toy, options.Selection):
        for name, annotation, _ in options_of(group):
            if get_origin(kind_of(annotation)) is Literal:
                assert texts_of(python[name]) == set(get_args(kind_of(annotation))) != set(), name
    drawn = get_type_hints(Drawable.plot, localns={"Figure": object, "Iterable": Iterable})
    for name, choices in (("ramp", get_args(Ramp)), ("colormap", COLORMAPS)):
        assert texts_of(drawn[name]) == set(choices_of(options.ViewOptions, name)) == set(choices)
    assert texts_of(get_type_hints(learn, include_extras=True)["lesson"]) == LESSONS.keys()


# For each row of the table that refuses, a command line with such an option.
REFUSED = {
    "inspect x --from a": "TEXT does not apply to --from, whose attention is already computed; drop one of them",
    "inspect --from a --generate 3": "--generate does not apply to --from, whose attention is already computed",
    "tokens --from a --vocab words": "--vocab does not apply to --from",
    "explore --from a --pair x": "--pair does not apply to --from",
    "inspect --from a --dtype float16": "--dtype does not apply to --from without the --model of a capture",
    "diff --first x -m demo -m demo --top 3": "--top does not apply to --first, which compares whole runs",
    "diff --first x -m demo -m demo --mask full": "--mask does not apply to --first, which compares the masks",
    "inspect x -m demo --seed 3": "--seed does not apply to --model; it belongs to the toy layer",
    "inspect x --dtype float16": "--dtype does not apply to the toy layer; give --model, or leave it out",
    "inspect x --project none --init zeros": "--init does not apply to --project none, which has no weights",
    "check x -m demo --against demo --layer 1": "--layer does not apply to --against, which compares all layers of",
    "heads x -m demo -m demo --sort sink": "--sort does not apply to several checkpoints, whose heads are listed by",
    "inspect x --quiet --verbose": "--quiet does not apply to --verbose; drop one of them",
    "inspect x -m demo --chat --pair y": "--pair does not apply to --chat, which makes one text of all messages",
    "inspect x --hide-special": "--hide-special does not apply to --vocab words, which adds none",
    "inspect x -m demo --rollout --head 1": "--head does not apply to --rollout, which is the mean over all heads",
    "inspect x -m demo --generate 2 --words": "--words does not apply to --generate, whose tokens have no places",
    "inspect x -o page.html --top-keys 2": "--top-keys does not apply to html, whose page holds all weights",
    "inspect x -o x.pdf --top-keys 2": "--top-keys does not apply to a figure, whose maps show every key",
    "inspect x --show q -o x.pdf": "--show does not apply to a figure, which is maps of weights; give svg without",
    "inspect x -m demo --grid 2x2": "--grid does not apply to a model, whose processor sets it; give --from",
    "inspect --from a --prefix 1": "--prefix does not apply to a run without --grid; give --grid, such as 14x14",
    "inspect x -m demo --tower text": "--tower does not apply to a run without --image; drop it, or give --image",
    "inspect x -m demo --image a.png --tower vision": "TEXT does not apply to --tower vision, which reads",
    "inspect x -m demo --image a.png --pair y": "--pair does not apply to --image; drop one of them",
    "inspect x --image a.png": "--image does not apply to the toy layer; give --model, or leave it out",
    "inspect x --whole": "--whole does not apply to TEXT, which is one text already; drop it",
    "inspect x --column y": "--column does not apply to sentences without --file; give --file NAME.csv",
    "inspect x -m demo --chat --no-special": "--no-special does not apply to --chat, whose template writes",
    "inspect x -m demo --rollout --norms": "--norms does not apply to --rollout, which multiplies weights",
    "mask show causal x --size 2": "--size does not apply to TEXT, whose words are the keys",
    "inspect x -F json --size 3in": "--size does not apply to json; it sets the size of a figure: give -o figure.pdf",
    "inspect x -j 2": "--jobs does not apply to table, which draws one sentence at a time; give",
    "tokens x -j auto -F svg": "--jobs does not apply to svg, which draws one sentence at a time",
    "inspect x -j 2 --save x.safetensors -F json": "--jobs does not apply to --save, which keeps a trace",
    "inspect x --save x.safetensors -o out/": "--save does not apply to -o FOLDER/, whose parts hold many sentences",
    "inspect x -F jsonl --on ray": "--on does not apply to a file; give -o FOLDER/, whose parts Ray computes",
    "inspect x -m demo -o out/ --on ray --device-map auto": "--device-map does not apply to --on, where each process",
    "inspect x -m demo -o out/ --on ray --device cuda:1": "--device does not apply to --on, where Ray chooses the GPU",
    "heads x --top 3": "--top does not apply to heads that are not ranked; give --sort METRIC",
    "run --prove causal --expect causal x.py": "--expect does not apply to --prove, which asks whole models",
    "run --every 2 --expect causal x.py": "--expect does not apply to --every, which checks no mask; drop one of them",
    "heads x -m demo --induction": "TEXT does not apply to --induction, which draws its tokens",
    "heads --pairs x.jsonl --query time": "--query does not apply to --pairs, whose file has the texts and queries",
    "mask convert causal --size 2 --to mha -o x.npy --dtype float16": "--dtype does not apply to --to mha",
}  # fmt: skip


@pytest.mark.parametrize(("command", "is_toy"), [
    ("inspect x", True), ("inspect x -m demo", False), ("why x -q x", False), ("why x -q x -m toy", True),
    ("why x -q x --seed 3", True), ("heads x", False), ("heads x --target y", True), ("heads x -m toy", True),
    ("diff 'x z' 'y z' -m toy", True), ("ablate x", False),
])  # fmt: skip
def test_the_model_is_the_toy_layer_or_the_demo(command: str, is_toy: bool, attn: Run) -> None:
    ran = attn(*shlex.split(command))
    assert (ran.code, ran.out.startswith("toy layer · " if is_toy else "demo · ")) == (0, True)


@pytest.mark.parametrize("line", REFUSED)
def test_what_does_not_apply_is_one_sentence(line: str, attn: Run, folder: Path) -> None:
    refused(attn(*shlex.split(line)), USAGE, REFUSED[line])
    assert list(folder.iterdir()) == []


def test_every_row_that_refuses_has_a_line() -> None:
    reasons = [why.partition(" ")[0] for _, _, why in TABLE["refused"] if not why.startswith("{")]
    assert all(any(f"does not apply to {reason}" in message for message in REFUSED.values()) for reason in reasons)
