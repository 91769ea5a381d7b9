"""Files: never half-written (everything goes to the side first and is renamed when it is whole), and bfloat16."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from attncli.errors import InputError
from attncli.tokens import visible


@contextmanager
def written_aside(path: str | Path, suffix: str | None = None) -> Iterator[Path]:
    """Give the path of a side file in the same folder; rename it to `path` when the block succeeds.

    Args:
        path: the file to write.
        suffix: of a side file that stays when the block fails, unless it is empty; None is one that is removed.

    Raises:
        InputError: the folder does not exist or cannot be written to.
    """
    final = Path(path)
    try:
        if final.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        aside = final.with_name(f".{final.name}.{os.getpid()}.tmp" if suffix is None else final.name + suffix)
        try:
            yield aside
            os.replace(aside, final)
        finally:
            if suffix is None or _is_empty(aside):
                with suppress(OSError):
                    aside.unlink()
    except OSError as error:
        raise InputError(f"cannot write {visible(str(final))}: {error.strerror or error}") from None


def _is_empty(path: Path) -> bool:
    return path.is_file() and path.stat().st_size == 0


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
