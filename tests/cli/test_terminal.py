"""The program in a real terminal, and at the end of a real pipe."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

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


def test_a_pipe_gets_the_table_plain_whole_and_the_same_at_any_terminal_width() -> None:
    outputs = {program("inspect", SENTENCE, env=os.environ | {"COLUMNS": columns}).stdout for columns in ("40", "200")}
    assert len(outputs) == 1
    assert "\x1b" not in outputs.pop()


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_no_encoding_ends_the_program(encoding: str) -> None:
    ran = subprocess.run(
        [*ATTN, "inspect", "時間 flies 🙂 Ġ"],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": encoding},
        check=True,
    )
    text = ran.stdout.decode(encoding)
    assert ("時間" if encoding == "utf-8" else "\\u6642\\u9593") in text
    assert ran.stderr == b""


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


def test_a_closed_pipe_ends_silently(tmp_path: Path) -> None:
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("time flies like an arrow\n" * 400)
    command = f"{shlex.join([*ATTN, 'inspect', '--file', str(sentences), '-F', 'tsv'])} | head -1"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("sentence\tlayer\t")
    assert ran.stderr == ""


@pytest.mark.usefixtures("signals_arrive")
def test_an_interrupt_ends_with_130_and_leaves_no_file(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    running = subprocess.Popen(
        [*ATTN, "inspect", "-", "-F", "json", "-o", str(tmp_path / "out.json")],
        stdin=reader,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.write(writer, b"time flies\n")
    for _ in range(600):
        time.sleep(0.1)
        if list(tmp_path.iterdir()):
            break
    else:
        pytest.fail("it has not begun to write, aside")
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    os.close(writer)
    assert (running.returncode, errors) == (130, "")
    assert list(tmp_path.iterdir()) == []
