"""Who types: a person at a terminal, or at one page, whose process `serving` has started."""

from __future__ import annotations

import os
import select
import signal
from threading import Thread
from time import sleep

from attncli.interruption import end

_PATIENCE = 2  # seconds for ending as a person who leaves does; Textual waits for ever to write to what is gone


def is_served() -> bool:
    """Whether a browser is the terminal: textual-serve says so to what it starts."""
    return os.environ.get("TEXTUAL_DRIVER", "").endswith(":WebDriver")


def end_with_who_types() -> None:
    """End as by a SIGTERM when the terminal or the server is gone, however that ended; Textual would stay."""
    if hasattr(select, "poll"):  # which Windows has not
        Thread(target=_watch, name="who types", daemon=True).start()


def _watch() -> None:
    waiting = select.poll()
    waiting.register(0, 0)  # that the other end is closed is always reported
    if any(event & select.POLLHUP for _, event in waiting.poll()):
        os.kill(os.getpid(), signal.SIGTERM)
        sleep(_PATIENCE)
        end(signal.SIGHUP)
