"""What this machine has for the processes that work on it: cores, memory."""

from __future__ import annotations

import os
from contextlib import suppress

_SAY = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
ONE_THREAD = dict.fromkeys(_SAY, "1")
"""Variables of the environment with which a process multiplies on one core; there is a process for every core."""


def cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # which not every system has
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # of a container that has fewer: "200000 100000" is two
        quota, period = _read("/sys/fs/cgroup/cpu.max").split()
        count = min(count, max(1, int(quota) // int(period)))
    return count


def affordable() -> int:
    """Return how many workers there are cores and memory for, if each takes as much of its own as this process has."""
    count = cores()
    with suppress(OSError, ValueError, KeyError):
        free = _kilobytes("/proc/meminfo")["MemAvailable"]
        with suppress(OSError, ValueError):
            limit, used = (int(_read(f"/sys/fs/cgroup/memory.{name}")) // 1024 for name in ("max", "current"))
            free = min(free, limit - used)
        count = min(count, int(0.8 * free // _kilobytes("/proc/self/status")["RssAnon"]))
    return max(count, 1)


def _read(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()


def _kilobytes(path: str) -> dict[str, int]:
    """Return the lines of a table of the kernel's that are sizes."""
    lines = (line.split() for line in _read(path).splitlines())
    return {fields[0].rstrip(":"): int(fields[1]) for fields in lines if fields[2:] == ["kB"]}
