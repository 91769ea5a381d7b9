"""Files that are never half-written, and of what is read only files, of a bounded size.

What is written goes to the side first and is renamed when it is whole.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import IO

from attncli.errors import ExitCode, InputError
from attncli.interruption import Undoing
from attncli.tokens import visible
from attncli.writing import DESCRIPTORS, claimed, discard, goes_straight, replace

# How many bytes of a file are read whole, by what it holds; no real one comes near. Tensors are mapped.
MOST_SETTINGS = 2**20  # a configuration file, a mask in Python, the config.json that a TAB looks into
MOST_TEXT = 2**28  # a file of a checkpoint that holds no weights, a mask in JSON or CSV
MOST_PACKED = 2**31  # a mask in an archive


def check_file(path: str | Path, most: int | None = None, is_stream: bool = False) -> None:
    """Refuse what is no file, which may never end or never begin, and a file that is too large to be read.

    Args:
        path: what is about to be read.
        most: how many bytes it may have; None is any number.
        is_stream: whether a pipe, or a stream that is open already, will do.

    Raises:
        OSError: its text is what the path is, such as `is a folder`, or the system's reason why that is not known.
    """
    try:
        status = os.stat(path)
    except ValueError:  # no system has a file of such a name
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from None
    if is_stream and (stat.S_ISFIFO(status.st_mode) or str(path).startswith(DESCRIPTORS)):
        return
    if stat.S_ISDIR(status.st_mode):
        raise OSError("is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise OSError("is a pipe or a device")
    if most is not None and status.st_size > most:
        raise OSError(f"is larger than {most >> 20} MiB")


def read_file(path: str | Path, most: int) -> bytes:
    """Return what a file holds; see `check_file`."""
    check_file(path, most)
    with open(path, "rb") as file:
        return file.read(most)


@contextmanager
def written_aside(path: str | Path, suffix: str | None = None, goes_on: bool = False) -> Iterator[Path]:
    """Give the path of a side file in the same folder; rename it to `path` when the block succeeds.

    A pipe, a device or an open stream is given itself; of a link, what it points to is written.

    Args:
        path: the file to write.
        suffix: of a side file that stays when the block fails, unless it is empty, and that one run at a time may
            write; None is one that is removed.
        goes_on: whether a side file that an interrupted run left is gone on with.

    Raises:
        InputError: the folder does not exist or cannot be written to, or another run is writing the side file, or
            has left one.
    """
    given = Path(path)
    try:
        if goes_straight(given):
            yield given
            return
        final = Path(os.path.realpath(given)) if given.is_symlink() else given
        if final.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        is_kept = suffix is not None
        # Every run has its own, also one with the same process id in another container.
        aside = final.with_name(final.name + suffix if suffix else f".attn-{os.urandom(6).hex()}.tmp")
        with claimed(aside) if is_kept else nullcontext(), Undoing(partial(discard, aside, is_kept)):
            if is_kept and not goes_on and aside.exists() and aside.stat().st_size:
                way = "go on from it with inspect --resume if inspect wrote it, or "
                way = "" if final.suffix.lower() == ".parquet" else way
                raise InputError(f"{visible(str(aside))} is there, as an interrupted run leaves it; {way}remove it")
            try:
                yield aside
                replace(aside, final)
            finally:
                discard(aside, is_kept)
    except BrokenPipeError:  # a pipe that nobody reads any more is no error, as on standard output
        raise SystemExit(ExitCode.CLOSED_PIPE) from None
    except OSError as error:
        raise InputError(f"cannot write {visible(str(given))}: {error.strerror or error}") from None


@contextmanager
def text_aside(path: str | Path, suffix: str | None = None) -> Iterator[IO[str]]:
    """Like `written_aside`, opened for UTF-8 text."""
    with written_aside(path, suffix) as aside, open(aside, "w", encoding="utf-8", newline="") as stream:
        yield stream
