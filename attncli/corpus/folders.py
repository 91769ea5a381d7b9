"""Folders that files are written into whole or not at all: here, or in a bucket or on another machine, by their URL."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Protocol

from attncli.corpus.places import file_system, reason_of, shown
from attncli.errors import AttnError, InputError
from attncli.files import atomic_write, discard, file_lock
from attncli.signals import OnInterrupt
from attncli.text import visible


class Folder(Protocol):
    """A folder of files, none of which is ever seen half-written.

    Attributes:
        name: as people are told.
    """

    name: str

    def names(self) -> set[str]:
        """Return the names of its files; none where there is no such folder.

        Raises:
            InputError: it cannot be listed.
        """

    def opened(self, name: str) -> IO[bytes] | None:
        """Return a file to read and seek in; None where there is none.

        Raises:
            InputError: it cannot be read.
        """

    @contextmanager
    def written(self, name: str) -> Iterator[Path]:
        """Give the path of a file to write, which has its name once the block succeeds.

        Raises:
            InputError: it cannot be written.
        """

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder, and keep other runs out of it, where that can be had.

        Raises:
            InputError: another run is in it, or it cannot be made.
        """

    def remove(self, name: str) -> None:
        """Remove a file, if it can be."""


def folder_at(place: str) -> Folder:
    """Return the folder of a path or a URL.

    Raises:
        LoadError: what reads them is not installed.
        InputError: it cannot be reached, or nothing here knows such URLs.
    """
    return RemoteFolder(place) if "://" in place else LocalFolder(Path(place))


LOCK = "_attncli.lock"


class LocalFolder:
    """A folder of this machine; see `Folder`."""

    def __init__(self, path: Path) -> None:
        here = Path.cwd()
        self.name = visible(str(path.relative_to(here) if here in path.parents else path))
        self._path = path

    def names(self) -> set[str]:
        """Return the names of its files."""
        try:
            return set(os.listdir(self._path))
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise self._unreadable(self.name, error) from None

    def opened(self, name: str) -> IO[bytes] | None:
        """Return a file to read."""
        try:
            return open(self._path / name, "rb")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(f"{self.name}/{name}", error) from None

    @contextmanager
    def written(self, name: str) -> Iterator[Path]:
        """Give the path of a side file, which is on the disk before it has its name."""
        with atomic_write(self._path / name) as aside:
            yield aside
            with open(aside, "rb+") as file:
                os.fsync(file.fileno())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder, hold it, and remove what killed processes left of their side files."""
        lock = self._path / LOCK
        try:
            is_new = not self._path.is_dir()
            self._path.mkdir(exist_ok=True)
            with file_lock(lock), OnInterrupt(partial(self._leave, is_new)):
                self._clear()
                try:
                    yield
                finally:
                    self._leave(is_new)
        except OSError as error:
            raise InputError(f"cannot write {self.name}: {error.strerror or error}") from None

    def _leave(self, is_new: bool) -> None:
        """Remove what is no part and no manifest, and a new folder if nothing is in it."""
        self._clear()
        discard(self._path / LOCK, is_kept=False)
        if is_new:
            with suppress(OSError):  # it is not empty
                self._path.rmdir()

    def _clear(self) -> None:
        for left in self._path.glob(".attn-*.tmp"):
            left.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Remove a file, if it can be."""
        discard(self._path / name, is_kept=False)

    @staticmethod
    def _unreadable(name: str, error: OSError) -> InputError:
        return InputError(f"cannot read {name}: {error.strerror or error}")


# A file of theirs is seen once it is whole, and they have no folders; others give a file its name at the end.
_OBJECT_STORES = ("s3", "gcs", "abfs")


class RemoteFolder:
    """A folder behind a URL; see `Folder`. Two runs of the same command may be in it: they write the same parts."""

    def __init__(self, url: str) -> None:
        self.name = visible(shown(url)).rstrip("/")
        with self._reached("reach"):
            self._files, path = file_system(url)
            self._path = path.rstrip("/")
            self._is_store = self._files.type_name in _OBJECT_STORES

    def names(self) -> set[str]:
        """Return the names of its files."""
        from pyarrow.fs import FileSelector

        with self._reached("list"):
            selector = FileSelector(self._path, allow_not_found=True)
            return {found.base_name for found in self._files.get_file_info(selector)}

    def opened(self, name: str) -> IO[bytes] | None:
        """Return a file to read."""
        with self._reached("read", name):
            try:
                file: IO[bytes] = self._files.open_input_file(f"{self._path}/{name}")
            except FileNotFoundError:
                return None
            return file

    @contextmanager
    def written(self, name: str) -> Iterator[Path]:
        """Give the path of a file of this machine, which is then put there."""
        with TemporaryDirectory(prefix="attn-") as here:
            yield Path(here, name)
            final = f"{self._path}/{name}"
            aside = final if self._is_store else f"{self._path}/.attn-{os.urandom(6).hex()}.tmp"
            with self._reached("write", name):
                with open(Path(here, name), "rb") as file, self._files.open_output_stream(aside) as sink:
                    shutil.copyfileobj(file, sink, _AT_ONCE)
                if not self._is_store:
                    self._files.move(aside, final)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder; there are no locks."""
        if not self._is_store:
            with self._reached("write"):
                self._files.create_dir(self._path, recursive=True)
        yield

    def remove(self, name: str) -> None:
        """Remove a file, if it can be."""
        with suppress(OSError):
            self._files.delete_file(f"{self._path}/{name}")

    @contextmanager
    def _reached(self, what: str, name: str = "") -> Iterator[None]:
        try:
            yield
        except AttnError:
            raise
        except Exception as error:  # of any library
            place = f"{self.name}/{name}" if name else self.name
            raise InputError(f"cannot {what} {place}: {reason_of(error)}") from None


_AT_ONCE = 2**24  # bytes
