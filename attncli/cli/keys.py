"""The keys of a person at the terminal, one at a time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from select import select
from typing import IO

from attncli.interruption import Undoing


class Key(Enum):
    """What a key asks for."""

    NEXT = "the next screen"
    BACK = "the screen before"
    END = "no more"


_MEANINGS = {
    # The last three are right, down and page down; left, up and page up.
    **dict.fromkeys([b"\n", b"\r", b" ", b"n", b"\x1b[C", b"\x1b[B", b"\x1b[6~"], Key.NEXT),
    **dict.fromkeys([b"b", b"p", b"\x7f", b"\x08", b"\x1b[D", b"\x1b[A", b"\x1b[5~"], Key.BACK),
    # The last three are Escape, Ctrl-D, and a terminal that is gone.
    **dict.fromkeys([b"q", b"Q", b"\x1b", b"\x04", b""], Key.END),
}
_REST = 0.05  # seconds within which the rest of a key comes that is more than one byte


@contextmanager
def keys(prompt: IO[str]) -> Iterator[Callable[[], Key]]:
    """Give what waits for the next key that asks for something; the terminal is as it was when the block is over.

    Args:
        prompt: where the person reads, whose last line says which keys there are.
    """
    import termios  # which Windows lacks
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def leave() -> None:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        os.write(prompt.fileno(), b"\n")

    def pressed() -> Key:
        # Without waiting for Enter, and without showing what is typed; Ctrl-C is the signal that it always is. Each
        # time, for a shell that the program was stopped in for a while sets the terminal as it likes it.
        tty.setcbreak(descriptor, termios.TCSADRAIN)
        while (key := _MEANINGS.get(_typed(descriptor))) is None:
            pass
        return key

    with Undoing(leave):
        tty.setcbreak(descriptor, termios.TCSADRAIN)
        try:
            yield pressed
        finally:
            leave()


def _typed(descriptor: int) -> bytes:
    """Return one key as the terminal sends it: a byte, or an escape and what follows at once."""
    key = os.read(descriptor, 1)
    while key[:1] == b"\x1b" and len(key) < 8 and not _is_whole(key) and select([descriptor], [], [], _REST)[0]:
        key += os.read(descriptor, 1)
    return key


def _is_whole(key: bytes) -> bool:
    return len(key) > 2 and (key[-1:].isalpha() or key[-1:] == b"~")
