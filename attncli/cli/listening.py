"""What the sources log of their work, heard by whoever wants it: `--verbose`, and the status line of a terminal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _Listener(logging.Handler):
    def __init__(self, hear: Callable[[str], None], level: int) -> None:
        super().__init__(level)
        self._hear = hear

    def emit(self, record: logging.LogRecord) -> None:
        self._hear(record.getMessage())


@contextmanager
def listening(hear: Callable[[str], None], level: int = logging.INFO) -> Iterator[None]:
    """Pass on what is logged while the block runs.

    Args:
        hear: takes one line; what it quotes may hold anything.
        level: from which level on; steps are `INFO`, how far a download is `DEBUG`.
    """
    logger = logging.getLogger("attncli")
    listener, before = _Listener(hear, level), logger.level
    logger.addHandler(listener)
    logger.setLevel(min(level, before or level))
    try:
        yield
    finally:
        logger.removeHandler(listener)
        logger.setLevel(before)
