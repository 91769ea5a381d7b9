"""How far a download is, logged: the hub's client draws its own bars, and nobody asked it to draw on our streams."""

from __future__ import annotations

import io
import logging
from typing import Any

from tqdm.std import tqdm

_log = logging.getLogger(__name__)


class Download(tqdm):  # type: ignore[misc]  # tqdm has no types
    """A bar of the hub's client that says what it would have drawn."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, file=io.StringIO())

    def display(self, *_: Any, **__: Any) -> None:
        """Say which file it is, how much of it is there, and how large it is."""
        size = "" if self.total is None else f" of {_size(self.total)}"
        _log.debug("downloading %s: %s%s", (self.desc or "a file").rpartition("/")[2], _size(self.n), size)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
