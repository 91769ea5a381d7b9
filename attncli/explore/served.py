"""The explorer as one page's process, which `serving` has started."""

from __future__ import annotations

import os
import select
import signal
from threading import Thread


def is_served() -> bool:
    """Whether a browser is the terminal: textual-serve says so to what it starts."""
    return os.environ.get("TEXTUAL_DRIVER", "").endswith(":WebDriver")


def end_with_the_server() -> None:
    """End as by a SIGTERM when nobody is left who could type, however the server ended; Textual would stay."""
    Thread(target=_watch, name="server", daemon=True).start()


def _watch() -> None:
    waiting = select.poll()
    waiting.register(0, 0)  # that the other end is closed is always reported
    waiting.poll()
    os.kill(os.getpid(), signal.SIGTERM)
