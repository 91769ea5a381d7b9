"""A real terminal: tmux, of a size of its own, typed into and looked at."""

import os
import subprocess
import time
from collections.abc import Callable
from itertools import count
from typing import Self

_NUMBERS = count()


class Tmux:
    def __init__(self, width: int, height: int, **environment: str) -> None:
        self._server = f"attncli-{os.getpid()}-{next(_NUMBERS)}"
        variables = {"NO_COLOR": "", "COLUMNS": "", "LINES": "", "TERM": "tmux-256color", "PS1": "$ "} | environment
        unset = [part for name, value in variables.items() if not value for part in ("-u", name)]
        set_ = [f"{name}={value}" for name, value in variables.items() if value]
        self.tmux(
            "-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", str(height), "env", *unset, *set_, "sh"
        )

    def tmux(self, *arguments: str) -> str:
        ran = subprocess.run(
            ["tmux", "-u", "-L", self._server, *arguments], capture_output=True, encoding="utf-8", check=True
        )
        return ran.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.tmux("kill-server")

    def told(self, form: str) -> str:
        return self.tmux("display-message", "-p", form).strip()

    def resize(self, width: int, height: int) -> None:
        self.tmux("resize-window", "-x", str(width), "-y", str(height))

    def type(self, text: str) -> None:
        self.tmux("send-keys", "-l", text)

    def press(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def paste(self, text: str) -> None:
        self.tmux("set-buffer", text)
        self.tmux("paste-buffer", "-p")

    def shown(self, colored: bool = False) -> str:
        return self.tmux("capture-pane", "-p", *["-e"] * colored)

    def until(self, holds: Callable[[str], object], seconds: float = 60) -> str:
        end = time.monotonic() + seconds
        while not holds(shown := self.shown()):
            assert time.monotonic() < end, shown
            time.sleep(0.03)
        return shown
