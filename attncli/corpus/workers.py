"""Workers: processes that do batches, in the order in which they are read.

A worker opens the work for itself, so that weights which are mapped are there once. One thread here waits for each of
them: it takes the next batch and passes on what the worker answers. A worker that is killed takes nothing along but its
batch, which is done again by another one, from the first answer that is missing.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from queue import Empty, Queue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from attncli.corpus.serving import serve, unpickled
from attncli.corpus.work import Answer, Batch, Work
from attncli.engines.cpu import ONE_THREAD
from attncli.errors import Failure, InputError
from attncli.signals import OnInterrupt

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

_TRIES = 3  # workers that a batch may end
_STARTS = 10  # workers that may end before they have opened the work, one after the other
_WAITING = 2**28  # bytes of answers that are taken in ahead of their turn, of all workers together

_log = logging.getLogger(__name__)


class Waiting(Queue["bytes | Exception | None"]):
    """The answers to a batch, pickled one after the other, as many as have so many bytes; None is the end."""

    def _init(self, maxsize: int) -> None:
        super()._init(maxsize)
        self._bytes = 0

    def _qsize(self) -> int:
        return self._bytes

    def _put(self, item: bytes | Exception | None) -> None:
        super()._put(item)
        self._bytes += self._size(item)

    def _get(self) -> bytes | Exception | None:
        item = super()._get()
        self._bytes -= self._size(item)
        return item

    @staticmethod
    def _size(item: bytes | Exception | None) -> int:
        return 1 + len(item) if isinstance(item, bytes) else 1


class Pool:
    """Workers, each with a thread that waits for it; a context that ends all of them with the block.

    Args:
        work: what they do.
        batches: what it is done with.
        jobs: how many they are.
    """

    def __init__(self, work: Work[Any], batches: Iterator[Batch], jobs: int) -> None:
        self._work = work
        self._batches = batches
        self._jobs = jobs
        self._context = multiprocessing.get_context("spawn")
        self._reading, self._starting = Lock(), Lock()
        self._order: Queue[Waiting | None] = Queue(jobs)  # of the batches that were taken, as many ahead as may wait
        self._processes: set[SpawnProcess] = set()
        self._is_read = self._is_over = False
        self._open = ExitStack()

    def __enter__(self) -> Pool:
        self._open.enter_context(_one_thread_each())
        self._open.enter_context(OnInterrupt(self._kill))
        return self

    def __exit__(self, *_: object) -> None:
        with self._open:
            self._end()

    def answers(self) -> Iterator[Answer[Any]]:
        """Yield the answers, in order."""
        # It would let the signals through that the threads keep from the workers, if it was started by one.
        resource_tracker.ensure_running()
        for _ in range(self._jobs):
            Thread(target=self._serve, daemon=True).start()
        while (own := self._order.get()) is not None:
            while (message := own.get()) is not None:
                if isinstance(message, Exception):
                    raise message
                for answer in unpickled(message):
                    if isinstance(answer, logging.LogRecord):
                        logging.getLogger(answer.name).handle(answer)
                    else:
                        yield answer

    def _kill(self) -> None:
        """End all workers at once."""
        self._is_over = True
        for process in list(self._processes):
            process.kill()

    def _end(self) -> None:
        """End all workers, and the threads that wait for them or for their answers to be read."""
        self._is_over = True
        with self._starting:  # after which none is started, and under which their own threads wait for their end too
            self._kill()
            for process in list(self._processes):
                process.join()
        with suppress(Empty):
            while True:
                own = self._order.get_nowait()
                with suppress(Empty):
                    while own is not None:
                        own.get_nowait()

    def _serve(self) -> None:
        """Let one worker do batch after batch, until there are no more."""
        if hasattr(signal, "pthread_sigmask"):  # which a worker inherits: Ctrl-C is a matter of this process
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        worker = _Worker(self._start, self._starting)
        while (taken := self._taken()) is not None:
            batch, own = taken
            try:
                self._do(worker, batch, own)
                own.put(None)
            except Exception as error:
                own.put(error)  # with which the run ends
                return

    def _taken(self) -> tuple[Batch, Waiting] | None:
        """Take the next batch, and the queue for its answers, which is put into its place among the others."""
        own = Waiting(_WAITING // self._jobs)
        with self._reading:
            if self._is_read or self._is_over:
                return None
            try:
                batch = next(self._batches, None)
            except Exception as error:
                own.put(error)
                batch = None
            self._is_read = batch is None
            self._order.put(None if batch is None and own.empty() else own)
        return None if batch is None else (batch, own)

    def _do(self, worker: _Worker, batch: Batch, own: Waiting) -> None:
        """Pass on the answers to a batch.

        Raises:
            Exception: what the work raises, or an InputError that it cannot be done.
        """
        count = 0
        for _ in range(_TRIES):
            try:
                for message, answers in worker.answers(batch, count):
                    own.put(message)
                    count += answers
                return
            except _GoneError:
                if self._is_over:
                    return
                ended = worker.ended()
                _log.info("a worker was ended %s; its batch is done again", ended)
        first, last = batch.sentences[0], batch.sentences[-1]
        why = f"ended {_TRIES} worker processes one after the other, the last one {ended}"
        if not self._work.by_sentence:
            raise InputError(
                f"sentences {first.number} to {last.number} {why}; give fewer --jobs if there is too little memory"
            )
        if len(batch.sentences) == 1:
            failure = Failure(f"it {why}; give fewer --jobs if there is too little memory", kept=first.kept)
            own.put(pickle.dumps(Answer(first.number, failure)))
        else:
            for sentence in batch.sentences[count:]:
                self._do(worker, Batch(batch.name, [sentence]), own)

    def _start(self) -> tuple[SpawnProcess, Connection]:
        """Start a worker, and return what it is reached by."""
        ours, theirs = self._context.Pipe()
        level = logging.getLogger("attncli").getEffectiveLevel()
        process = self._context.Process(target=serve, args=(self._work, theirs, level), daemon=True)
        with self._starting:
            if self._is_over:
                raise _GoneError
            process.start()
            self._processes.add(process)
        theirs.close()
        return process, ours


class _Worker:
    """A process that does one batch at a time, or the one after it.

    Args:
        start: starts one.
        starting: held while that happens. It looks after all processes, and one of which two threads learn how it has
            ended has no exit code in one of them.
    """

    def __init__(self, start: Callable[[], tuple[SpawnProcess, Connection]], starting: Lock) -> None:
        self._start = start
        self._starting = starting
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None

    def answers(self, batch: Batch, skipped: int) -> Iterator[tuple[bytes, int]]:
        """Yield the answers to a batch but for some, pickled one after the other, with how many each message has.

        Raises:
            _GoneError: the process is.
            Exception: what the work raises, or an InputError that no process lives to begin with it.
        """
        connection = self._connection or self._opened()
        with _noticing():
            connection.send((batch, skipped))
        while (message := _received(connection)) is not None:
            yield message

    def ended(self) -> str:
        """Return how a process has ended that is gone."""
        assert self._process is not None
        with self._starting:
            self._process.join()
            code, self._connection = self._process.exitcode, None
        return f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"

    def _opened(self) -> Connection:
        """Start a process, and wait until it has opened the work."""
        for _ in range(_STARTS):
            self._process, self._connection = self._start()
            try:
                _received(self._connection)
                return self._connection
            except _GoneError:
                how = self.ended()
        raise InputError(
            f"{_STARTS} worker processes ended before they had begun, the last one {how}; give fewer --jobs if there "
            "is too little memory"
        )


class _GoneError(Exception):
    """A process is not there any more."""


@contextmanager
def _noticing() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError):
        raise _GoneError from None


def _received(connection: Connection) -> Any:
    """Return what a process sends; an error is raised."""
    with _noticing():
        message = connection.recv()
    if isinstance(message, Exception):
        raise message
    return message


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Let the processes that are started in the block multiply on one core each."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
