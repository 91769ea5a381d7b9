"""Resources of this machine: cores and memory for processes."""

from __future__ import annotations

import os
from contextlib import suppress

# Variables that limit a process to one core for products, as there is a process for every core.
_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
ONE_THREAD = dict.fromkeys(_VARIABLES, "1")


def cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # which not every system has
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # of a container that has fewer: "200000 100000" is two
        quota, period = _read("/sys/fs/cgroup/cpu.max").split()
        count = min(count, max(1, int(quota) // int(period)))
    return count


def affordable() -> int:
    """Return how many workers there are cores and memory for, if each needs as much memory as this process has."""
    count, free = cores(), free_memory()
    with suppress(OSError, ValueError, LookupError):
        resident = _sizes("/proc/self/status")["RssAnon:"]
        count = count if free is None else min(count, int(0.8 * free // resident))
    return max(count, 1)


def free_memory() -> int | None:
    """Return how many bytes processes may still allocate; None if the system does not report it."""
    free = []
    with suppress(OSError, ValueError, LookupError):
        free.append(_sizes("/proc/meminfo")["MemAvailable:"])
    with suppress(OSError, ValueError, LookupError):  # of a container that has less; "max" is no number
        limit, used = (int(_read(f"/sys/fs/cgroup/memory.{name}")) for name in ("max", "current"))
        # File caches are released on demand.
        free.append(limit - used + _sizes("/sys/fs/cgroup/memory.stat", 1)["inactive_file"])
    return min(free, default=None)


def _read(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()


def _sizes(path: str, unit: int = 1024) -> dict[str, int]:
    """Return the sizes in a table of the kernel's, in bytes, by their names."""
    lines = (line.split() for line in _read(path).splitlines())
    return {fields[0]: int(fields[1]) * unit for fields in lines if len(fields) > 1 and fields[1].isdecimal()}
