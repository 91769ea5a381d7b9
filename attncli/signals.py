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
_NUMBERS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def handle_signals() -> None:
    """End with 128 + the signal's number from here on: 130 for Ctrl-C, 143 for SIGTERM, as shells report them."""
    for number in _NUMBERS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as a shell had us ignore it (nohup, a job in the background)
            signal.signal(number, end)


def restore_signals() -> None:
    """Restore the handlers that Python has, for a program of the user's that runs in this process."""
    for number in _NUMBERS:
        if signal.getsignal(number) == end:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


class OnInterrupt:
    """Within the block, an early end calls `undo` first; a block that ends by itself does not."""

    def __init__(self, undo: Callable[[], None]) -> None:
        self._undo = undo

    def __enter__(self) -> None:
        _undoing.append(self._undo)

    def __exit__(self, *_: object) -> None:
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
