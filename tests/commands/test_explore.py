"""`attn explore`: what it is started with, what leaving it prints, and where it is refused."""

import os
import pty
import shlex
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from select import select
from struct import pack
from typing import Any

import pytest
from running import text_shown
from safetensors.numpy import load_file

from attncli import errors
from attncli.cli.environment import Environment
from attncli.explore.keys import help_rows, markdown

Run = Callable[..., Any]
TEXT = "time flies like an arrow"
DRAWN = "this prints what it would begin with: "


class Person:
    """Somebody at a terminal, whose standard output is another one: what is drawn is on the first."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        (self.terminal, drawn), (self.other, out) = pty.openpty(), pty.openpty()
        ioctl(self.terminal, termios.TIOCSWINSZ, pack("HHHH", 24, 80, 0, 0))
        self.settings = termios.tcgetattr(self.terminal)
        plain = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "attncli", "explore", *arguments],
            stdin=drawn,
            stdout=out,
            stderr=drawn,
            env=plain | environment,
            start_new_session=True,
        )
        os.close(drawn)
        os.close(out)
        self.shown = ""

    def until(self, *wanted: str) -> None:
        """Look until all of this has been drawn since the last time."""
        self.shown = ""
        while not all(each in text_shown(self.shown) for each in wanted):
            self.shown += os.read(self.terminal, 65536).decode(errors="replace")

    def types(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def left(self) -> tuple[int, str]:
        """How it ended, and what standard output got."""
        printed = ""
        for terminal in (self.terminal, self.other):
            try:
                while read := os.read(terminal, 65536):
                    printed += read.decode() if terminal == self.other else ""
            except OSError:  # the other end is closed
                continue
        return self.process.wait(), printed.replace("\r\n", "\n")


@contextmanager
def person(*arguments: str, **environment: str) -> Iterator[Person]:
    somebody = Person(*arguments, **environment)
    try:
        yield somebody
    finally:
        somebody.process.kill()
        somebody.process.wait()
        os.close(somebody.terminal)
        os.close(somebody.other)


def test_leaving_prints_the_command_line_that_gives_what_was_seen(attn: Run) -> None:
    with person(TEXT, "-m", "demo", "--mask", "causal & window(3)", "--colormap", "gray") as one:
        one.until("head 0", "entropy")
        one.types(" fast")
        one.until("fast")
        one.types("\x1b")
        one.until("q leave")
        one.types("].")
        one.until("head 1 · weights · layer 1")
        one.types("q")
        code, printed = one.left()
    assert (code, printed.count("\n")) == (0, 1)
    line = "-m demo --colormap gray --mask 'causal & window(3)' --layer 1 --head 1"
    assert printed == f"attn inspect '{TEXT} fast' {line}\n"
    assert attn(*shlex.split(printed)[1:]).code == 0


@pytest.mark.usefixtures("signals_arrive")
@pytest.mark.parametrize("how", ["\x03", signal.SIGTERM, signal.SIGINT])
def test_however_it_is_left_it_says_the_same(how: str | signal.Signals) -> None:
    with person("time", "flies", "--seed", "3", "--no-out-proj", "--ramp", "sqrt") as one:
        one.until("head 0", "entropy")
        if isinstance(how, str):
            one.types(how)
        else:
            one.process.send_signal(how)
        line = "attn inspect 'time flies' --seed 3 --no-out-proj --head 0 --ramp sqrt\n"
        assert one.left() == (0, line)


@pytest.mark.usefixtures("signals_arrive")
def test_a_terminal_that_goes_ends_it() -> None:
    with person(TEXT, "-m", "demo") as one:
        one.until("head 0", "entropy")
        os.close(one.terminal)
        one.terminal = os.open(os.devnull, os.O_RDONLY)
        assert one.process.wait(60) == 0


@pytest.mark.usefixtures("signals_arrive")
def test_a_terminal_that_goes_while_it_does_not_read_ends_it() -> None:
    with person(TEXT, "-m", "demo") as one:
        one.until("head 0", "entropy")
        for _ in range(40):
            one.types("\x1b[5~\x1b[6~")  # the layer before and the next one: more frames than wait to be written
            time.sleep(0.1)
        os.close(one.terminal)
        one.terminal = os.open(os.devnull, os.O_RDONLY)
        assert one.process.wait(60) in (0, 128 + signal.SIGHUP)  # 0 if the machine was too slow to draw so many


def test_bytes_that_are_no_text_are_lost_and_typing_goes_on() -> None:
    with person(TEXT, "-m", "demo") as one:
        one.until("head 0", "entropy")
        os.write(one.terminal, b"\xed\xa0\xbd")
        one.shown = ""
        while "arrowy" not in text_shown(one.shown):  # what is read together with them is lost too
            one.types("y")
            if select([one.terminal], [], [], 0.1)[0]:
                one.shown += os.read(one.terminal, 65536).decode(errors="replace")
        one.types("\x15time flies fast")
        one.until("4 fast")  # on the map: what is left is what was drawn
        one.types("\x03")
        assert one.left() == (0, "attn inspect 'time flies fast' -m demo --head 0\n")


def test_who_leaves_while_torch_computes_ends_it(minilm: str) -> None:
    with person(TEXT, "-m", minilm, "--engine", "transformers") as one:
        one.until("head 0", "entropy")
        one.types(" and the dog" * 40)
        one.types("\x03")
        code, printed = one.left()
    assert (code, printed.count("\n")) == (0, 1)
    assert printed.startswith(f"attn inspect '{TEXT}")


def test_a_saved_trace_is_explored_and_saved_again(attn: Run, folder: Path) -> None:
    assert attn("inspect", TEXT, "-m", "demo", "-l", "1", "--save", "a.safetensors").code == 0
    with person("--from", "a.safetensors") as one:
        one.until("head 0", "entropy")
        one.types("\x1b")
        one.until("q leave")
        one.types("\ts\x15b.safetensors\r")
        one.until("saved: attn inspect --from a.safetensors")
        one.types("q")
        assert one.left() == (0, "attn inspect --from a.safetensors --layer 1\n")
    assert load_file("b.safetensors").keys() == load_file("a.safetensors").keys()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([TEXT, "-m", "demo", "--ramp", "sqrt"], f"attn inspect '{TEXT}' -m demo --ramp sqrt"),
        (["time", "flies", "--pair", "x"], "attn inspect 'time flies' --pair x"),
        (["-m", "demo"], "attn inspect - -m demo"),
        (["-"], "attn inspect -"),
        (["--from", "a b.safetensors"], "attn inspect --from 'a b.safetensors'"),
    ],
)
def test_a_pipe_gets_the_command_that_takes_its_place(arguments: list[str], said: str, attn: Run) -> None:
    ran = attn("explore", *arguments, stdin="time flies\n")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith(f"{DRAWN}{said}\n")


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        ([], {"TERM": "dumb"}, "TERM says that this one is dumb"),
        ([], {"ACCESSIBLE": "1"}, "ACCESSIBLE says that it is read aloud"),
        (["-"], {}, "- is standard input"),
        (["a b", "c d"], {}, "2 sentences, and one is explored at a time"),
        (["-m", "missing"], {"HF_HUB_OFFLINE": "1"}, "missing"),
    ],
)
def test_a_terminal_is_told_why_not(arguments: list[str], environment: dict[str, str], said: str) -> None:
    with person(*arguments, **environment) as one:
        one.until("attn:")
        code, printed = one.left()
        assert (code, printed) == (3 if "missing" in arguments else 2, "")
        assert said in " ".join(text_shown(one.shown).split()), one.shown
        assert "\x1b[?1049h" not in one.shown
        assert termios.tcgetattr(one.terminal) == one.settings


@pytest.mark.parametrize("option", [["--pair", "x"], ["--mask", "full"], ["-m", "demo"], ["--seed", "1"], ["time"]])
def test_what_is_saved_takes_nothing_that_makes_attention(
    option: list[str], attn: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert attn("inspect", TEXT, "--save", "a.safetensors").code == 0
    monkeypatch.setattr(Environment, "lacks_screen", lambda _: "")
    ran = attn("explore", "--from", "a.safetensors", *option)
    assert (ran.code, ran.out) == (2, "")
    assert "does not apply to --from" in ran.err


def test_it_says_what_it_takes(attn: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Environment, "lacks_screen", lambda _: "")
    monkeypatch.setattr(errors, "not_installed", lambda *packages: packages)
    ran = attn("explore")
    assert (ran.code, ran.err) == (
        3,
        "attn: attn explore takes textual, which is not installed: pip install 'attncli[explore]'\n",
    )


def test_the_guide_has_the_keys_that_the_program_has() -> None:
    page = Path(__file__).parents[2] / "docs" / "guides" / "explore.md"
    assert markdown(help_rows()) in page.read_text(encoding="utf-8")
