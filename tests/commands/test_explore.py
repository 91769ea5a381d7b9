"""`attn explore`: what it is started with, what leaving it prints, and where it is refused."""

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from person import person
from refusals import USAGE, refused

from attncli.cli.environment import Environment

Run = Callable[..., Any]
TEXT = "time flies like an arrow"


@pytest.mark.usefixtures("signals_arrive")
def test_a_terminal_that_goes_ends_it() -> None:
    with person("explore", TEXT, "-m", "demo") as one:
        one.until("head 0", "entropy")
        os.close(one.terminal)
        one.terminal = os.open(os.devnull, os.O_RDONLY)
        assert one.process.wait(60) == 0


def test_who_leaves_while_torch_computes_ends_it(minilm: str) -> None:
    with person("explore", TEXT, "-m", minilm, "--engine", "transformers") as one:
        one.until("head 0", "entropy")
        one.types(" and the dog" * 40)
        one.types("\x03")
        code, printed = one.left()
    assert (code, printed.count("\n")) == (0, 1)
    assert printed.startswith(f"attn inspect '{TEXT}")


def test_a_pipe_is_told_what_to_use(attn: Run) -> None:
    refused(attn("explore", TEXT), USAGE, f"is not one. Static view: attn inspect '{TEXT}' -m demo")
    refused(attn("explore", TEXT, "--num-heads", "2"), USAGE, f"Static view: attn inspect '{TEXT}' --num-heads 2")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("-", 2, "- is standard input"),
        ("'a b' 'c d'", 2, "2 sentences; attn explore takes one"),
        ("-m missing", 3, "missing"),
    ],
)
def test_what_cannot_be_explored_is_refused(
    arguments: str, code: int, message: str, attn: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert attn("inspect", TEXT, "--save", "a.safetensors").code == 0
    monkeypatch.setattr(Environment, "lacks_screen", lambda _: "")
    refused(attn("explore", *shlex.split(arguments)), code, message)
