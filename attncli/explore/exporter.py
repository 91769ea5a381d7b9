"""What is seen, in a file: written by the very command that gives it, which computes it anew."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from attncli.errors import InputError
from attncli.explore.command import InputSource, ReplayCommand, ViewSnapshot, What, command_of
from attncli.text import visible

_TRACE = ".safetensors"


class Exporter:
    """Writes what is seen, and says so; a file that is there already takes its name twice.

    Args:
        given: what the explorer was started with.
    """

    def __init__(self, source: InputSource) -> None:
        self._source = source
        self._refused: Path | None = None

    def __call__(self, seen: ViewSnapshot, path: Path) -> str:
        """Write a file, and return what wrote it.

        Its ending decides what it is, as it does of the command's `--output`; `.safetensors` is the trace that is
        looked at.

        Raises:
            InputError: the file is there, or the command says why it writes none.
        """
        try:
            path = path.expanduser()
        except RuntimeError as error:
            raise InputError(f"{visible(str(path))} is in no folder: {error}") from None
        if os.path.lexists(path) and path != self._refused:
            self._refused = path
            raise InputError(f"{visible(str(path))} exists; save again under this name to replace it")
        self._refused = None
        if path.suffix.lower() == _TRACE:
            what: What = "head" if seen.what == "head" else "heads"
            command = command_of(ViewSnapshot(replace(seen.look, held=None), what), self._source)
            more = ("--save", str(path))
        else:
            command, more = command_of(seen, self._source), ("-o", str(path))
        _run(command, more)
        return f"saved: {command.line(*more)}"


def _run(command: ReplayCommand, more: tuple[str, ...]) -> None:
    stdin = b"-\n" if command.reads_itself else b""
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "attncli", *command.words(*more)],
            input=stdin,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
    except (OSError, ValueError) as error:  # a text that no command line holds
        raise InputError(f"not saved: {error}") from None
    if ran.returncode:
        lines = ran.stderr.decode(errors="replace").splitlines() or [f"attn ended with {ran.returncode}"]
        raise InputError(lines[-1].removeprefix("attn: "))
