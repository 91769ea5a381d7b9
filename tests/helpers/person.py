"""Somebody at a terminal of 80 columns and 24 lines, at which the program runs, types, and waits for what is drawn."""

import os
import pty
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from struct import pack

from running import text_shown


class Person:
    """A run of the program at a terminal; its standard output is another one, if it is apart."""

    def __init__(self, *arguments: str, is_apart: bool, **environment: str) -> None:
        (self.terminal, drawn), (self.other, out) = pty.openpty(), pty.openpty()
        ioctl(self.terminal, termios.TIOCSWINSZ, pack("HHHH", 24, 80, 0, 0))
        self.settings = termios.tcgetattr(self.terminal)
        plain = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "attncli", *arguments], stdin=drawn, stdout=out if is_apart else drawn,
            stderr=drawn, env=plain | environment, start_new_session=True,
            preexec_fn=None if is_apart else lambda: ioctl(0, termios.TIOCSCTTY, 0),  # from which signals come
        )  # fmt: skip
        os.close(drawn)
        os.close(out)
        self.shown = ""

    def until(self, *wanted: str) -> str:
        self.shown = ""
        while not all(each in text_shown(self.shown) for each in wanted):
            self.shown += os.read(self.terminal, 65536).decode(errors="replace")
        return self.shown

    def types(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def left(self) -> tuple[int, str]:
        printed = ""
        for terminal in (self.terminal, self.other):
            try:
                while read := os.read(terminal, 65536):
                    printed += read.decode() if terminal == self.other else ""
            except OSError:  # the other end is closed
                continue
        return self.process.wait(), printed.replace("\r\n", "\n")


@contextmanager
def person(*arguments: str, is_apart: bool = True, **environment: str) -> Iterator[Person]:
    somebody = Person(*arguments, is_apart=is_apart, **environment)
    try:
        yield somebody
    finally:
        somebody.process.kill()
        somebody.process.wait()
        os.close(somebody.terminal)
        os.close(somebody.other)
