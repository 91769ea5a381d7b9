"""Ends the explorer when its terminal is closed; Textual would wait for ever to write to it."""

from __future__ import annotations

import os
import select
import signal
from threading import Thread
from time import sleep

from attncli.signals import end

_PATIENCE = 2  # seconds for ending as a person who leaves does


def end_with_terminal() -> None:
    """End as by a SIGTERM when the terminal is gone, however that ended."""
    if hasattr(select, "poll"):  # which Windows has not
        Thread(target=_watch, name="terminal", daemon=True).start()


def _watch() -> None:
    waiting = select.poll()
    waiting.register(0, 0)  # that the other end is closed is always reported
    if any(event & select.POLLHUP for _, event in waiting.poll()):
        os.kill(os.getpid(), signal.SIGTERM)
        sleep(_PATIENCE)
        end(signal.SIGHUP)
