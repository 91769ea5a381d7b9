"""Ending early: Ctrl-C, a SIGTERM or a closed terminal leave nothing half-written behind, and print nothing.

It is settled before anything else is imported, so this imports next to nothing itself.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
else:
    import _signal as signal  # which is there from the start; `signal` makes enums of its numbers, for milliseconds

_undoing: list[Callable[[], None]] = []


def handle_signals() -> None:
    """End with 128 + the signal's number from here on: 130 for Ctrl-C, 143 for SIGTERM, as shells report them."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # What a shell had us ignore (nohup, a job in a script's background) is ignored.
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)


def restore_signals() -> None:
    """Restore the handlers that Python has, for a program of the user's that runs in this process."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == end:
            signal.signal(number, signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)


class OnInterrupt:
    """Within the block, an early end calls `undo` first; a block that ends by itself does not."""

    def __init__(self, undo: Callable[[], None]) -> None:
        self._undo = undo

    def __enter__(self) -> None:
        """Register what an early end has to undo."""
        _undoing.append(self._undo)

    def __exit__(self, *_: object) -> None:
        """Forget `undo`, as the block has ended."""
        _undoing.remove(self._undo)


def end(number: int, _: object = None) -> None:
    """Undo half-written output, and end with 128 + the number of a signal, from any thread."""
    # No exception: in an import, a finalizer, a callback from C or a library's `except:` one is swallowed or reported.
    while _undoing:
        try:
            _undoing.pop()()
        except Exception:  # the others are still to be undone
            continue
    os._exit(128 + number)
