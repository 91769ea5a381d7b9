"""What a worker process does: a work, batch after batch, and messages of the answers.

A message is answers and records of the log, pickled one after the other, and how many of these are answers; None is the
end of a batch, and an error what the work has raised.
"""

from __future__ import annotations

import io
import logging
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from itertools import islice
from multiprocessing.connection import Connection
from threading import Thread
from time import perf_counter
from typing import Any

from attncli.corpus.work import Answer, Work

MESSAGE = 2**20
"""Bytes of answers that a worker sends at a time."""

_PAUSE = 0.05  # seconds after which it sends less


def unpickled(message: bytes) -> Iterator[Any]:
    """Yield the objects of which one was pickled after the other."""
    stream = io.BytesIO(message)
    while stream.tell() < len(message):
        yield pickle.load(stream)


class _Heard(logging.Handler):
    """What is logged in a worker, until it is sent with its answers."""

    def __init__(self) -> None:
        super().__init__()
        self._records: list[bytes] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record, as a message without arguments."""
        plain = {**vars(record), "msg": record.getMessage(), "args": None, "exc_info": None}
        self._records.append(pickle.dumps(logging.makeLogRecord(plain)))

    def taken(self) -> list[bytes]:
        """Return the records since the last call, pickled."""
        records, self._records = self._records, []
        return records


def serve(work: Work[Any], connection: Connection, level: int) -> None:
    """Do batches, in a worker, until there are no more or nobody is there who wants them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is to be undone
    Thread(target=_end_with_parent, daemon=True).start()
    heard, logger = _Heard(), logging.getLogger("attncli")
    if level <= logging.INFO:
        logger.addHandler(heard)
        logger.setLevel(level)
    with redirect_stdout(sys.stderr):  # standard output is for data
        try:
            done = work.open()
            connection.send(None)
            while True:
                try:
                    batch, skipped = connection.recv()
                except EOFError:
                    return
                _answer(connection, islice(done(batch), skipped, None), heard)
        except Exception as error:
            with suppress(OSError):  # nobody is there any more
                connection.send(_sendable(error))


def _answer(connection: Connection, answers: Iterator[Answer[Any]], heard: _Heard) -> None:
    """Send the answers to a batch, in messages that are neither small nor late."""
    waiting: list[bytes] = []
    count = size = 0
    sent = perf_counter()
    try:
        for answer in answers:
            result = answer.result
            waiting.append(
                pickle.dumps(answer._replace(result=tuple(result)) if isinstance(result, Iterator) else answer)
            )
            count += 1
            size += len(waiting[-1])
            if size >= MESSAGE or perf_counter() - sent >= _PAUSE:
                connection.send((b"".join([*heard.taken(), *waiting]), count))
                waiting, count, size, sent = [], 0, 0, perf_counter()
    finally:  # an error comes after what there is
        connection.send((b"".join([*heard.taken(), *waiting]), count))
    connection.send(None)


def _sendable(error: Exception) -> Exception:
    """Return an error as it was raised, if it can be sent, with where that was."""
    import traceback

    error.add_note("in a worker process:\n" + "".join(traceback.format_exception(error)))
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
