"""The program run in a process of its own, and what it prints."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attncli.render.palette import Palette


@dataclass
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]


def program(*arguments: str | Path, python: str = sys.executable, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [python, "-m", "attncli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False, **options)


def printed(parts: Iterable[RenderableType], palette: Palette, width: int | None = None) -> str:
    """Print the parts of a view on a terminal of a width, in colour if the palette has any."""
    from rich.console import Console

    stream = io.StringIO()
    console = Console(
        file=stream, width=width or 100_000, height=100, force_terminal=palette.has_color,
        color_system="truecolor" if palette.has_color else None, legacy_windows=False, markup=False, emoji=False,
        highlight=False, _environ={},
    )  # fmt: skip
    for part in parts:
        console.print(part)
    return stream.getvalue()


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def on_terminal(
    *arguments: str | Path, out: bool = False, stdin: str | bytes = "", python: str = sys.executable, **environment: str
) -> tuple[int, str, str]:
    """Run the program with stderr on a terminal, and stdout too if wanted: exit code, other stdout, the terminal."""
    parent, child = pty.openpty()
    elsewhere = tempfile.TemporaryFile()  # noqa: SIM115
    run = subprocess.Popen(
        [python, "-m", "attncli", *map(str, arguments)], stdin=subprocess.PIPE, stdout=child if out else elsewhere,
        stderr=child, env=os.environ | {"TERM": "xterm-256color"} | environment,
    )  # fmt: skip
    os.close(child)
    run.stdin.write(stdin.encode() if isinstance(stdin, str) else stdin)
    run.stdin.close()
    shown = b""
    while True:
        try:
            read = os.read(parent, 65536)
        except OSError:  # the other end is closed
            break
        if not read:
            break
        shown += read
    os.close(parent)
    code = run.wait()
    with elsewhere:
        elsewhere.seek(0)
        return code, elsewhere.read().decode(), shown.decode()


def text_shown(shown: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
