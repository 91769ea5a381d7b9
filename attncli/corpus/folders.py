"""Folders whose files are whole or absent: here, or in a bucket or on another machine, by their URL."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from attncli.corpus.remote import error_reason, filesystem, without_password
from attncli.errors import AttnError, InputError
from attncli.files import atomic_write, discard, file_lock
from attncli.signals import OnInterrupt
from attncli.text import visible

LOCK = "_attncli.lock"
_CHUNK = 2**24  # bytes that are sent at a time


class Folder(Protocol):
    """A folder of files, none of which is ever seen half-written; what cannot be done raises InputError.

    Attributes:
        name: as people are told.
    """

    name: str

    def sizes(self) -> dict[str, int]:
        """Return the names and the sizes of its files; none where there is no such folder."""

    def read(self, name: str) -> bytes | None:
        """Return what a small file holds; None where there is none."""

    @contextmanager
    def write(self, name: str) -> Iterator[Path]:
        """Give the path of a file to write, which has its name once the block succeeds."""

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Make the folder, and keep other runs out of it, where that can be had; a new one that stays empty goes."""

    def remove(self, name: str) -> None:
        """Remove a file, if it can be."""


def folder_at(place: str) -> Folder:
    """Return the folder of a path or a URL.

    Raises:
        LoadError: what reads them is not installed.
        InputError: it cannot be reached, or nothing here knows such URLs.
    """
    return _RemoteFolder(place) if "://" in place else _LocalFolder(Path(place))


class _LocalFolder:
    def __init__(self, path: Path) -> None:
        here = Path.cwd()
        self.name = visible(str(path.relative_to(here) if here in path.parents else path))
        self._path = path

    def sizes(self) -> dict[str, int]:
        with self._translate("read"):
            return {entry.name: entry.stat().st_size for entry in os.scandir(self._path)} if self._path.exists() else {}

    def read(self, name: str) -> bytes | None:
        with self._translate("read"), suppress(FileNotFoundError):
            return (self._path / name).read_bytes()
        return None

    @contextmanager
    def write(self, name: str) -> Iterator[Path]:
        with atomic_write(self._path / name) as aside:
            yield aside
            with open(aside, "rb+") as file:  # it is on the disk before it has its name
                os.fsync(file.fileno())

    @contextmanager
    def hold(self) -> Iterator[None]:
        is_new = not self._path.is_dir()

        def leave() -> None:
            for left in self._path.glob(".attn-*.tmp"):  # of processes that were killed
                left.unlink(missing_ok=True)
            self.remove(LOCK)
            if is_new:
                with suppress(OSError):  # it is not empty
                    self._path.rmdir()

        with self._translate("write"):
            self._path.mkdir(exist_ok=True)
            with file_lock(self._path / LOCK), OnInterrupt(leave):
                try:
                    yield
                finally:
                    leave()

    def remove(self, name: str) -> None:
        discard(self._path / name, is_kept=False)

    @contextmanager
    def _translate(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(f"cannot {what} {self.name}: {error.strerror or error}") from None


# A file of theirs is seen once it is whole, and they have no folders; others give a file its name at the end.
_OBJECT_STORES = ("s3", "gcs", "abfs")


class _RemoteFolder:
    """Two runs of the same command may be in it: they write the same parts."""

    def __init__(self, url: str) -> None:
        self.name = visible(without_password(url)).rstrip("/")
        with self._translate("reach"):
            self._files, path = filesystem(url)
            self._path = path.rstrip("/")
            self._is_store = self._files.type_name in _OBJECT_STORES

    def sizes(self) -> dict[str, int]:
        from pyarrow.fs import FileSelector

        with self._translate("list"):
            selector = FileSelector(self._path, allow_not_found=True)
            return {found.base_name: found.size for found in self._files.get_file_info(selector)}

    def read(self, name: str) -> bytes | None:
        with self._translate("read", name):
            try:
                return bytes(self._files.open_input_file(f"{self._path}/{name}").read())
            except FileNotFoundError:
                return None

    @contextmanager
    def write(self, name: str) -> Iterator[Path]:
        with TemporaryDirectory(prefix="attn-") as here:
            yield Path(here, name)
            final = f"{self._path}/{name}"
            aside = final if self._is_store else f"{self._path}/.attn-{os.urandom(6).hex()}.tmp"
            with self._translate("write", name):
                with open(Path(here, name), "rb") as file, self._files.open_output_stream(aside) as sink:
                    shutil.copyfileobj(file, sink, _CHUNK)
                if not self._is_store:
                    self._files.move(aside, final)

    @contextmanager
    def hold(self) -> Iterator[None]:
        if not self._is_store:
            with self._translate("write"):
                self._files.create_dir(self._path, recursive=True)
        yield

    def remove(self, name: str) -> None:
        with suppress(OSError):
            self._files.delete_file(f"{self._path}/{name}")

    @contextmanager
    def _translate(self, what: str, name: str = "") -> Iterator[None]:
        try:
            yield
        except AttnError:
            raise
        except Exception as error:  # of any library
            place = f"{self.name}/{name}" if name else self.name
            raise InputError(f"cannot {what} {place}: {error_reason(error)}") from None
