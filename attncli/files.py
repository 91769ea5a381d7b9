"""Files: written whole or not at all, and tensors of safetensors files, also those in bfloat16.

NumPy is imported where a tensor is read: help, and the tokens of a sentence, need none.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from attncli.errors import ExitCode, InputError
from attncli.interruption import Undoing
from attncli.text import visible

if TYPE_CHECKING:
    import numpy as np
    import torch

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


def widened(bits: np.ndarray[Any, np.dtype[np.uint16]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return as float32, in the same shape, what these bits are in bfloat16."""
    import numpy as np

    return (bits.astype(np.uint32) << 16).view(np.float32)


def read_bfloat16(path: Path, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a bfloat16 tensor of a safetensors file as float32.

    The library gives NumPy none, so the bits are taken from the file, whose format is a length (8 bytes), a JSON header
    of that length, and the tensors.
    """
    import json

    import numpy as np

    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(length))[name]
        start, stop = entry["data_offsets"]
        file.seek(8 + length + start)
        bits = np.frombuffer(file.read(stop - start), np.dtype("<u2"))
    return widened(bits).reshape(entry["shape"])


_READABLE = frozenset({"F16", "F32", "F64", "BOOL", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64"})


class SavedTensors:
    """The tensors of an open safetensors file, read one by one as NumPy arrays."""

    def __init__(self, path: Path, file: Any) -> None:
        self.path = path
        self.file = file

    @cached_property
    def names(self) -> frozenset[str]:
        """What the file holds."""
        return frozenset(self.file.keys())

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """Return one tensor; bfloat16, which NumPy lacks, is widened to float32, exactly."""
        kind = self.file.get_slice(name).get_dtype()
        if kind == "BF16":
            return read_bfloat16(self.path, name)
        if kind not in _READABLE:
            raise InputError(
                f"tensor {visible(name)} is {kind}; expected floats of 16 bits or more, integers or booleans"
            )
        return self.file.get_tensor(name)


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a copy; half precision is widened to float32, which changes no number."""
    import numpy as np

    is_half = tensor.is_floating_point() and tensor.element_size() < 4
    return np.array((tensor.float() if is_half else tensor).detach().cpu().numpy())
