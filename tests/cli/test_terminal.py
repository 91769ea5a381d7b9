"""The program in a real terminal, and who decides about its colours."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from running import program

ATTN = [sys.executable, "-m", "attncli"]
SENTENCE = "time flies like an arrow"


class Tmux:
    """A terminal of its own size, into which a command is typed."""

    def __init__(self, width: int, height: int) -> None:
        self.server = f"attncli-{os.getpid()}-{width}"
        self.tmux("new-session", "-d", "-x", str(width), "-y", str(height), "env -u NO_COLOR TERM=tmux-256color sh")

    def tmux(self, *arguments: str) -> str:
        ran = subprocess.run(["tmux", "-L", self.server, *arguments], capture_output=True, encoding="utf-8", check=True)
        return ran.stdout

    def screen(self, command: str) -> tuple[str, str]:
        """Type a command, wait until it has ended, and return what stands there, without and with its colours."""
        self.tmux("send-keys", "-l", f"clear; {command}; echo en''ded $?")
        self.tmux("send-keys", "Enter")
        for _ in range(200):
            time.sleep(0.1)
            shown = self.tmux("capture-pane", "-p")
            if "\nended " in shown:
                return shown, self.tmux("capture-pane", "-p", "-e")
        raise AssertionError(f"the command did not end: {shown}")


@pytest.fixture(params=[40, 100, 200])
def terminal(request: pytest.FixtureRequest) -> Iterator[Tmux]:
    tmux = Tmux(request.param, 60)
    yield tmux
    tmux.tmux("kill-server")


@pytest.mark.system
def test_a_terminal_of_any_width_shows_the_whole_view_in_colour(terminal: Tmux) -> None:
    shown, coloured = terminal.screen(shlex.join([*ATTN, "inspect", SENTENCE]))
    assert "\nended 0" in shown
    assert "\x1b[48;5;" in coloured
    assert "weights of every head" in shown
    assert "head 3" in shown  # the last of them


@pytest.mark.parametrize(
    ("environment", "arguments", "is_coloured"),
    [
        ({}, [], False),
        ({"FORCE_COLOR": "1"}, [], True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, [], False),
        ({"NO_COLOR": "1"}, ["--color", "always"], True),
        ({"FORCE_COLOR": "1"}, ["--color", "never"], False),
        ({"TERM": "dumb"}, ["--color", "always"], True),
    ],
)
def test_colour_is_decided_by_the_flag_then_the_environment(
    environment: dict[str, str], arguments: list[str], is_coloured: bool
) -> None:
    plain = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR"}}
    ran = program("inspect", SENTENCE, *arguments, env=plain | environment)
    assert ("\x1b[" in ran.stdout) == is_coloured
