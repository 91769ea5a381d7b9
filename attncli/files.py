"""Files: never half-written (everything goes to the side first and is renamed when it is whole), and bfloat16."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from attncli.errors import ExitCode, InputError
from attncli.interruption import Undoing
from attncli.tokens import visible
from attncli.writing import claimed, discard, goes_straight, replace


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


def read_bfloat16(path: Path, name: str) -> np.ndarray[Any, Any]:
    """Return a bfloat16 tensor of a safetensors file as float32, which holds every bfloat16 exactly.

    A bfloat16 is the upper half of a float32. NumPy has no such type, so the bits are taken from the file, whose
    format is a length (8 bytes), a JSON header of that length, and the tensors.
    """
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(length))[name]
        start, stop = entry["data_offsets"]
        file.seek(8 + length + start)
        bits = np.frombuffer(file.read(stop - start), np.dtype("<u2"))
    return (bits.astype(np.uint32) << 16).view(np.float32).reshape(entry["shape"])
