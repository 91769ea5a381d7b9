"""Files that are being written: by one run at a time, beside what is there already, and gone if the run ends early."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attncli.errors import InputError
from attncli.tokens import visible

DESCRIPTORS = ("/dev/fd/", "/dev/std", "/proc/self/fd/")


def goes_straight(path: Path) -> bool:
    """Return whether a path is a pipe, a device or an open stream: it takes what is written, and is never replaced."""
    if str(path).startswith(DESCRIPTORS):
        return True
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


@contextmanager
def claimed(aside: Path) -> Iterator[None]:
    """Hold the side file of a stream, creating it; it is let go when this process ends, however it does.

    Raises:
        InputError: another run is writing it.
        OSError: it cannot be written.
    """
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock
    except ImportError:  # Windows lets no other run rename what is open
        yield
        return
    while True:
        with open(aside, "ab") as held:
            try:
                flock(held, LOCK_EX | LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    f"{visible(str(aside))} is being written by another run; wait for it, or give another file"
                ) from None
            except OSError:  # a file system without locks
                yield
                return
            if _is_still(held.fileno(), aside):
                yield
                return
        # The run that held it has just ended and renamed it: what was opened is its result.


def _is_still(descriptor: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def replace(aside: Path, final: Path) -> None:
    """Rename a side file to what it is to be; who may read what it replaces may read it, and nobody else."""
    with suppress(FileNotFoundError):
        aside.chmod(stat.S_IMODE(final.stat().st_mode))
    os.replace(aside, final)


def discard(aside: Path, is_kept: bool) -> None:
    """Remove a side file, if it is still there; one that is kept only if it is empty."""
    with suppress(OSError):
        if not is_kept or aside.stat().st_size == 0:
            aside.unlink()
