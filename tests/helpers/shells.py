"""Interactive shells in a terminal of their own, typed into as a user does."""

import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROJECT = Path(__file__).parents[2]
SCRIPTS = {"bash": "attn.bash", "zsh": "_attn", "fish": "attn.fish", "powershell": "attn.ps1"}
_READY, _RAN = "ready>", "it has run"
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[()].|\][^\x07]*\x07)")
# What is asked goes to the real program; what is run leaves its arguments behind, as the shell made them.
_PROGRAM = """#!/bin/sh
if [ -n "$_ATTN_COMPLETE" ]; then exec {python} -m attncli "$@"; fi
printf '%s\\0' "$@" > "$ATTN_RECORD" && echo {ran}
"""


class Shell:
    def __init__(self, terminal: int, record: Path) -> None:
        self.terminal = terminal
        self.record = record
        self.shown = ""

    def wait_for(self, *texts: str) -> None:
        start, end = len(self.shown), time.monotonic() + 60
        expected = re.compile(".*".join(map(re.escape, texts)), re.DOTALL)
        while not expected.search(_ESCAPES.sub("", self.shown[start:])):
            assert time.monotonic() < end, f"{texts} is not in {self.shown[start:]!r}"
            if select.select([self.terminal], [], [], 0.1)[0]:
                self.shown += os.read(self.terminal, 65536).decode(errors="replace")

    def ran(self, keys: str) -> list[str]:
        """Type a line and Enter; return the arguments that `attn` is run with, once the shell waits for the next."""
        os.write(self.terminal, f"{keys}\r".encode())
        self.wait_for(_RAN, _READY)
        return self.record.read_bytes().decode().split("\0")[:-1]


@contextmanager
def shell(name: str, home: Path, **environment: str) -> Iterator[Shell]:
    """Start a shell that knows the project's completion script, in the folder `home`, with nothing of the user's."""
    programs = home / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    (programs / "attn").write_text(_PROGRAM.format(python=sys.executable, ran=_RAN))
    (programs / "attn").chmod(0o755)
    script = PROJECT / "completions" / SCRIPTS[name]
    if name == "bash":
        (home / ".bashrc").write_text(f". {script}\nPS1='{_READY} '\n")
        command = ["bash", "--noprofile", "--rcfile", str(home / ".bashrc"), "-i"]
    elif name == "zsh":
        load = f"fpath=({script.parent} $fpath); autoload -Uz compinit; compinit -u -D"
        (home / ".zshrc").write_text(f"{load}\nPROMPT='{_READY} '\n")
        command = ["zsh", "-d", "-i"]
    else:
        (home / ".config" / "fish" / "completions").mkdir(parents=True, exist_ok=True)
        (home / ".config" / "fish" / "completions" / "attn.fish").write_text(script.read_text())
        (home / ".config" / "fish" / "config.fish").write_text(
            f"function fish_prompt; echo -n '{_READY} '; end; set -g fish_greeting\n"
        )
        command = ["fish", "-i"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_", "_ATTN"))}
    variables |= {
        "HOME": str(home), "ZDOTDIR": str(home), "TERM": "xterm", "COLUMNS": "100", "LC_ALL": "C.UTF-8",
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(PROJECT),
        "ATTN_RECORD": str(home / "ran"), "HISTFILE": "",
    } | environment  # fmt: skip
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(home)
        os.execvpe(command[0], command, variables)
    opened = Shell(terminal, home / "ran")
    try:
        opened.wait_for(_READY)
        yield opened
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(terminal)
