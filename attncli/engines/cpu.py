"""Cores of this machine, for processes and for the threads of a long text.

NumPy works on one core, but for products, whose threads wait for each other without sleeping, which costs more than it
gains for small products. So a long text is cut into blocks of rows, which threads take in turn, each with all steps of
its block, and BLAS keeps to the thread that calls it. The blocks depend on the length alone: the numbers are the same
to the last digit on any number of cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Executor


# Variables that limit a process to one core for products, as there is a process for every core.
_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
ONE_THREAD = dict.fromkeys(_VARIABLES, "1")


def cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # which not every system has
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # of a container that has fewer: "200000 100000" is two
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text("ascii").split()
        count = min(count, max(1, int(quota) // int(period)))
    return count


# --- threads of a long text --------------------------------------------------------------------------------

T = TypeVar("T")

LONG = 256  # tokens; threads save nothing noticeable on fewer

_ROWS = 256  # the most of a block of a long text
_OF_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")

_pool: ContextVar[Executor | None] = ContextVar("_pool", default=None)


def thread_count() -> int:
    """Return the number of threads for a long text: that of OpenBLAS's or OpenMP's variables, or one for each core."""
    threads = next((os.environ[name] for name in _OF_THREADS if os.environ.get(name)), "").split(",")[0].strip()
    return int(threads) if threads.isdecimal() and int(threads) > 0 else cores()


@contextmanager
def use_all_cores(tokens: int) -> Iterator[None]:
    """Let `parallel_for` use all cores within the block, for a text of more than `LONG` tokens."""
    if tokens <= LONG or (most := thread_count()) == 1:
        yield
        return
    from concurrent.futures import ThreadPoolExecutor

    from threadpoolctl import threadpool_limits  # which takes 15 ms

    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(most) as pool:
        shared = _pool.set(pool)
        try:
            yield
        finally:
            _pool.reset(shared)
            pool.shutdown(cancel_futures=True)


def blocks(rows: int) -> list[slice]:
    """Split many rows into blocks."""
    cuts = 1 if rows <= LONG else max(-(-rows // _ROWS), 4)
    ends = [rows * number // cuts for number in range(cuts + 1)]
    return list(map(slice, ends, ends[1:]))


def parallel_for(work: Callable[[T], object], items: Iterable[T]) -> None:
    """Call `work` with each of the items: on all cores for a long text, else one after the other."""
    pool = _pool.get()
    if pool is None:
        for item in items:
            work(item)
        return

    def alone(item: T) -> None:
        _pool.set(None)  # a task that waits for others in the pool might wait for itself
        work(item)

    # The context holds, among others, NumPy's warning settings.
    for future in [pool.submit(copy_context().run, alone, item) for item in items]:
        future.result()
