"""Files that are never half-written: everything goes to the side first and is renamed when it is whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from attncli.errors import InputError
from attncli.tokens import visible


@contextmanager
def written_aside(path: str | Path, suffix: str | None = None) -> Iterator[Path]:
    """Give the path of a side file in the same folder; rename it to `path` when the block succeeds.

    Args:
        path: the file to write.
        suffix: of the side file's name; None is one of this process alone, removed when the block fails.

    Raises:
        InputError: the folder does not exist or cannot be written to.
    """
    final = Path(path)
    aside = final.with_name(f".{final.name}.{os.getpid()}.tmp" if suffix is None else final.name + suffix)
    try:
        if final.is_dir():
            raise IsADirectoryError("it is a folder")
        yield aside
        os.replace(aside, final)
    except OSError as error:
        raise InputError(f"cannot write {visible(str(final))}: {error.strerror or error}") from None
    finally:
        if suffix is None:
            with suppress(OSError):
                aside.unlink()


@contextmanager
def text_aside(path: str | Path, suffix: str | None = None) -> Iterator[IO[str]]:
    """Like `written_aside`, opened for UTF-8 text."""
    with written_aside(path, suffix) as aside, open(aside, "w", encoding="utf-8", newline="") as stream:
        yield stream
