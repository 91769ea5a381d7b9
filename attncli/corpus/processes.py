"""Runs a job in several processes: a bounded number of batches under way, results in order.

Each process opens the job for itself, so that weights which are mapped are there once. The results of a batch come by
way of a file, so that memory does not grow with them.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import signal
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from tempfile import NamedTemporaryFile, mkdtemp
from threading import Thread
from typing import Any

from attncli.corpus.jobs import Batch, BatchFn, Job, Result
from attncli.engines.cpu import ONE_THREAD
from attncli.errors import AttnError, InputError
from attncli.signals import OnInterrupt


def run_in_processes(job: Job[Any], batches: Iterable[Batch], jobs: int) -> Iterator[Result[Any]]:
    """Yield the results of batches, in order; see `corpus.run.run`."""
    waiting: deque[Future[str]] = deque()
    with _pool(job, jobs) as (executor, folder):
        try:
            for batch in batches:
                waiting.append(executor.submit(_write_results, batch, folder))
                while len(waiting) > 2 * jobs or (waiting and waiting[0].done()):
                    yield from _results_in(waiting.popleft().result())
            while waiting:
                yield from _results_in(waiting.popleft().result())
        except BrokenProcessPool:
            raise InputError("a worker process was killed, perhaps for memory; give fewer --jobs") from None


@contextmanager
def _pool(job: Job[Any], jobs: int) -> Iterator[tuple[ProcessPoolExecutor, str]]:
    """Give the processes and a folder for their results; both are gone after the block, also where a signal ends it."""
    folder, variables = mkdtemp(prefix="attn-"), dict(os.environ)

    def end() -> None:
        for process in multiprocessing.active_children():
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)

    with OnInterrupt(end):
        # The warning is about semaphores that a killed run leaves behind.
        os.environ.update(ONE_THREAD, PYTHONWARNINGS="ignore::UserWarning")
        executor = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _begin, (job,))
        # The processes ignore Ctrl-C, which a terminal sends to them too, from their first instruction on.
        set_mask = getattr(signal, "pthread_sigmask", None)  # which Windows lacks
        before = set_mask and set_mask(signal.SIG_BLOCK, [signal.SIGINT])
        for _ in range(jobs):
            executor.submit(int)
        if set_mask:
            set_mask(signal.SIG_SETMASK, before)
        try:
            yield executor, folder
        finally:
            end()
            executor.shutdown(cancel_futures=True)
            os.environ.clear()
            os.environ.update(variables)


def _results_in(path: str) -> Iterator[Result[Any]]:
    """Yield the results that a process has written, or raise the error behind them, and remove their file."""
    with open(path, "rb") as file:
        os.unlink(path)
        while file.peek(1):
            result = pickle.load(file)
            if isinstance(result, AttnError):
                raise result
            yield result


# --- in the other process ------------------------------------------------------------------------------------

_job: Job[Any]
_results_of: BatchFn[Any] | None = None


def _begin(job: Job[Any]) -> None:
    global _job
    _job = job
    sys.stdout = sys.stderr  # standard output is for data
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is to be undone
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _write_results(batch: Batch, folder: str) -> str:
    """Do a batch, and return the file that has its results, or those before an error and the error."""
    global _results_of
    with NamedTemporaryFile("wb", dir=folder, delete=False) as file:
        try:
            _results_of = _results_of or _job.open()
            for result in _results_of(batch):
                value = result.value
                pickle.dump(result._replace(value=list(value)) if isinstance(value, Iterator) else result, file)
        except AttnError as error:
            pickle.dump(error, file)
    return file.name
