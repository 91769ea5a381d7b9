"""Files that are written whole or not at all, and tensors of safetensors files, also those in bfloat16.

NumPy is imported where a tensor is read: help, and the tokens of a sentence, need none.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from attncli.errors import ExitCode, InputError
from attncli.signals import OnInterrupt
from attncli.text import print_note, visible

if TYPE_CHECKING:
    import numpy as np
    import torch

# The most bytes of a file that are read whole, by its kind; no real one comes near. Tensors are mapped.
MOST_SETTINGS = 2**20  # a configuration file, the config.json that a TAB looks into
MOST_TEXT = 2**28  # a file of a checkpoint that holds no weights
MOST_PACKED = 2**31  # a mask in an archive
_DESCRIPTORS = ("/dev/fd/", "/dev/std", "/proc/self/fd/")


def check_file(path: str | Path, most: int | None = None, is_stream: bool = False) -> None:
    """Refuse a folder, a file of more than `most` bytes, a device, and unless `is_stream` a pipe, which may never end.

    Raises:
        OSError: its text is the kind of the path, such as `is a folder`, or the system's reason why that is not known.
    """
    try:
        status = os.stat(path)
    except ValueError:  # no system has a file of such a name
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from None
    if is_stream and (stat.S_ISFIFO(status.st_mode) or str(path).startswith(_DESCRIPTORS)):
        return
    if not stat.S_ISREG(status.st_mode):
        raise OSError("is a folder" if stat.S_ISDIR(status.st_mode) else "is a pipe or a device")
    if most is not None and status.st_size > most:
        raise OSError(f"is larger than {most >> 20} MiB")


def read_file(path: str | Path, most: int) -> bytes:
    """Return the bytes of a file; see `check_file`."""
    check_file(path, most)
    with open(path, "rb") as file:
        return file.read(most)


def check_folder(path: Path) -> None:
    """Raise InputError unless the folder of a file to write exists."""
    if not path.parent.exists():
        from shlex import quote

        name, folder = visible(str(path)), visible(str(path.parent))
        raise InputError(f"cannot write {name}: there is no folder {folder}; make it: mkdir -p {quote(folder)}")


@contextmanager
def atomic_write(path: str | Path, suffix: str | None = None) -> Iterator[Path]:
    """Write a file atomically: give the path of a side file, which is renamed to `path` when the block succeeds.

    A pipe, a device or an open stream is given itself; a link is followed. A side file with a `suffix` stays when the
    block fails, unless it is empty, and one run at a time may write it.

    Raises:
        InputError: the folder does not exist or cannot be written to, or another run is writing the side file.
    """
    target = Path(path)
    try:
        if is_stream_path(target):
            with _reader_of(target):
                yield target
            return
        final = Path(os.path.realpath(target)) if target.is_symlink() else target
        if final.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        check_folder(final)
        # Every run has its own, also one with the same process id in another container.
        aside = final.with_name(final.name + suffix if suffix else f".attn-{os.urandom(6).hex()}.tmp")

        def discard() -> None:
            with suppress(OSError):
                if suffix is None or aside.stat().st_size == 0:
                    aside.unlink()

        with nullcontext() if suffix is None else file_lock(aside), OnInterrupt(discard):
            try:
                yield aside
                with suppress(FileNotFoundError):  # with the permissions of the file that it replaces
                    aside.chmod(stat.S_IMODE(final.stat().st_mode))
                os.replace(aside, final)
            finally:
                discard()
    except BrokenPipeError:  # a pipe that is closed is no error, as on standard output
        raise SystemExit(ExitCode.CLOSED_PIPE) from None
    except OSError as error:
        raise InputError(f"cannot write {visible(str(target))}: {error.strerror or error}") from None


@contextmanager
def atomic_write_text(path: str | Path, suffix: str | None = None) -> Iterator[IO[str]]:
    """Like `atomic_write`, opened for UTF-8 text."""
    with atomic_write(path, suffix) as aside, open(aside, "w", encoding="utf-8", newline="") as stream:
        yield stream


def is_stream_path(path: Path) -> bool:
    """Return whether a path is a pipe, a device or an open stream, which is written to and never replaced."""
    is_open = str(path).startswith(_DESCRIPTORS)
    return is_open or (os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path))


@contextmanager
def _reader_of(path: Path) -> Iterator[None]:
    """Hold a named pipe open; a note names it until it has a reader."""
    if str(path).startswith(_DESCRIPTORS) or not path.is_fifo():
        yield
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        print_note(f"nobody reads {visible(str(path))} yet; waiting for a reader (Ctrl-C ends)")
        descriptor = os.open(path, os.O_WRONLY)
    with os.fdopen(descriptor):
        yield


@contextmanager
def file_lock(aside: Path) -> Iterator[None]:
    """Lock a file for this process, creating it; the lock ends with the process, however that ends.

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
        with open(aside, "ab") as file:
            try:
                flock(file, LOCK_EX | LOCK_NB)
            except BlockingIOError:
                name = visible(str(aside))
                raise InputError(f"{name} is being written by another run; wait, or give another file") from None
            except OSError:  # a file system without locks
                pass
            # The run that held the lock may have renamed the file: what was opened is its result.
            if aside.exists() and os.path.samestat(os.fstat(file.fileno()), aside.stat()):
                yield
                return


# Types that are read, and their NumPy types: NumPy has no bfloat16, of which these are the bits.
DTYPES = {"BOOL": "?", "BF16": "<u2"} | {
    f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "FIU" for size in (1, 2, 4, 8)
}
FLOATS = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}  # their names; the widest first
CODES = dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0"), "u1")  # NumPy has no such floats either


class Tensors:
    """The tensors of a safetensors file, which is mapped, by their names.

    The library gives NumPy no bfloat16, so the format is read here: eight bytes of length, a JSON header, the tensors.
    """

    def __init__(self, path: Path) -> None:
        import json
        import mmap

        import numpy as np
        from safetensors import safe_open

        with safe_open(path, framework="np") as checked:  # that the header fits the file
            self.metadata: dict[str, str] = checked.metadata() or {}
        with open(path, "rb") as file:
            self.pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        begin = 8 + int.from_bytes(self.pages[:8], "little")
        header: dict[str, Any] = json.loads(self.pages[8:begin])
        header.pop("__metadata__", None)
        self.types: dict[str, str] = {name: entry["dtype"] for name, entry in header.items()}
        self.shapes: dict[str, tuple[int, ...]] = {name: tuple(entry["shape"]) for name, entry in header.items()}
        self.starts: dict[str, int] = {name: begin + entry["data_offsets"][0] for name, entry in header.items()}
        types = DTYPES | CODES
        self.mapped: dict[str, np.ndarray[Any, Any]] = {  # not yet in memory; see `to_float32`
            name: np.ndarray(self.shapes[name], types[kind], self.pages, self.starts[name])
            for name, kind in self.types.items()
            if kind in types
        }

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """Return a copy of one tensor; bfloat16 as float32."""
        if (kind := self.types[name]) not in DTYPES:
            expected = "floats of 16 bits or more, integers or booleans"
            raise InputError(f"tensor {visible(name)} is {kind}; expected {expected}")
        return to_float32(self.mapped[name]) if kind == "BF16" else self.mapped[name].copy()


@contextmanager
def opened_tensors(path: str | Path) -> Iterator[Tensors]:
    """Open a safetensors file that is not trusted; the errors of reading it are those of one sentence, with its name.

    Raises:
        InputError: there is no such file, or it is damaged.
    """
    from safetensors import SafetensorError

    name = visible(str(path))
    try:
        check_file(path)
    except FileNotFoundError:
        raise InputError(f"trace file {name} does not exist") from None
    except OSError as error:
        raise InputError(f"{name} {error.strerror or error} and not a trace file") from None
    try:
        yield Tensors(Path(path))
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{name} is not a complete safetensors file: {visible(str(error))}") from None
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{name} holds no readable trace: {visible(str(error))}") from None


def to_float32(array: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return an array as float32, exactly; 16 bits that are no float are a bfloat16, which NumPy lacks."""
    import numpy as np

    if array.dtype != np.uint16:
        return np.asarray(array, np.float32)
    wide = array.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a copy; half precision is widened to float32, which changes no number."""
    import numpy as np

    is_half = tensor.is_floating_point() and tensor.element_size() < 4
    return np.array((tensor.float() if is_half else tensor).detach().cpu().numpy())
