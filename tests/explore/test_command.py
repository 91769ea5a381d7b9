"""The command line of what is seen: run by the program, it gives the numbers that the explorer had."""

import shlex
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attncli.engines.interactive import Query, open_interactive
from attncli.explore.command import What, as_line, command_of
from attncli.explore.computation import ComputedView, IncrementalComputation
from attncli.explore.view_state import ViewState

Run = Callable[..., Any]
TEXT = "time flies like an arrow"
DEMO = "-m", "demo"


def answered(look: ViewState, **options: Any) -> ComputedView:
    """What the explorer has of a look in the end."""
    *_, answer = IncrementalComputation(open_interactive(**options)).results(look)
    assert answer.failure == ""
    return answer


def answer_of(attn: Run, look: ViewState, what: What, *more: str) -> Any:
    """What the program says to the line, as a shell hands it over."""
    _, *words = shlex.split(as_line(command_of(look, what, DEMO)))
    ran = attn(*words, *more)
    assert ran.code == 0, ran.err
    return ran.json


@pytest.mark.parametrize(
    ("numbers", "mask", "what"),
    [("weights", "causal & window(3)", "head"), ("norms", None, "heads"), ("rollout", None, "head")],
)
def test_a_layer_is_what_inspect_computes(attn: Run, numbers: Any, mask: str | None, what: Any) -> None:
    look = ViewState(Query(TEXT, mask=mask), layer=2, head=3, numbers=numbers)
    shown = answered(look, model="demo").sights[0].trace
    (layer,) = answer_of(attn, look, what, "-F", "json", "--show", "weights")["layers"]
    heads = shown.layers[0].heads if what == "heads" or numbers == "rollout" else [3]
    for found, head in zip(layer["heads"], heads, strict=True):
        written = found["norms" if numbers == "norms" else "weights"]
        np.testing.assert_allclose(written, shown.layer(2).head(head).weights, rtol=1e-4, atol=1e-6)


def test_the_map_is_what_heads_measures(attn: Run) -> None:
    look = ViewState(Query(TEXT), metric="previous")
    survey = answered(look, model="demo").survey
    assert survey is not None
    words = command_of(look, "map", DEMO)
    assert words[-2:] == ["--sort", "previous"]
    found = attn(*words[1:], "-F", "json").json["heads"]
    assert [head["previous"] for head in found] == sorted((head["previous"] for head in found), reverse=True)
    measured = {(head.layer, head.head): head.metrics["previous"] for head in survey.heads}
    for one in found:
        assert one["previous"] == pytest.approx(measured[one["layer"], one["head"]], rel=1e-4)


@pytest.mark.parametrize("text", ["it's *", "--mask", '$HOME `ls` "x" \\n!', "a\tb\\'c\n\x1b[31mé\u202e"])
def test_a_shell_reads_the_line_as_it_is_meant(text: str) -> None:
    words = command_of(ViewState(Query(text)), "head", ("-m", "a b"))
    line = as_line(words)
    assert line.isprintable()
    ran = subprocess.run(
        ["bash", "-c", f"attn() {{ printf '%s\\0' \"$@\"; }}; {line}"], capture_output=True, check=True
    )
    assert ran.stdout.decode().split("\0")[:-1] == words[1:]


def test_a_text_that_looks_like_an_option_is_one_all_the_same(attn: Run) -> None:
    _, *words = command_of(ViewState(Query("--mask")), "head")
    assert attn(words[0], "-F", "json", *words[1:]).json["text"] == "--mask"
