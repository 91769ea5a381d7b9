"""`attn explore`: what it is started with, what leaving it prints, and where it is refused."""

import os
import shlex
import termios
from collections.abc import Callable
from pathlib import Path
from select import select
from typing import Any

import pytest
from person import person
from refusals import USAGE, refused
from running import text_shown

from attncli import errors
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
    ("environment", "message"),
    [
        ({"TERM": "dumb"}, "TERM says that this one is dumb"),
        ({"ACCESSIBLE": "1"}, "ACCESSIBLE says that it is read aloud"),
    ],
)
def test_a_terminal_is_told_why_not(environment: dict[str, str], message: str) -> None:
    with person("explore", **environment) as one:
        one.until("attn:")
        code, printed = one.left()
        assert (code, printed) == (2, "")
        assert message in " ".join(text_shown(one.shown).split()), one.shown
        assert "\x1b[?1049h" not in one.shown
        assert termios.tcgetattr(one.terminal) == one.settings


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


def test_it_says_what_it_takes(attn: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Environment, "lacks_screen", lambda _: "")
    monkeypatch.setattr(errors, "not_installed", lambda *packages: packages)
    ran = attn("explore")
    assert (ran.code, ran.err) == (
        3,
        f"attn: attn explore needs textual, which is not installed: {errors.install_command('textual')}\n",
    )


def test_bytes_that_are_no_text_are_lost_and_typing_goes_on() -> None:
    with person("explore", TEXT, "-m", "demo") as one:
        one.until("head 3", "previous")  # the strongest label of the demo
        os.write(one.terminal, b"\xed\xa0\xbd")
        one.shown = ""
        while "arrowy" not in text_shown(one.shown):  # what is read together with them is lost too
            one.types("y")
            if select([one.terminal], [], [], 0.1)[0]:
                one.shown += os.read(one.terminal, 65536).decode(errors="replace")
        one.types("\x15time flies fast")
        one.until("4 fast")  # on the map: what is left is what was drawn
        one.types("\x03")
        assert one.left() == (0, "attn inspect 'time flies fast' -m demo --layer 2 --head 3\n")
