"""A folder whose files are whole or absent: here, or in a bucket or on another machine, by its URL."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from attncli.corpus.files import error_reason, filesystem, is_url, without_password
from attncli.errors import AttnError, InputError
from attncli.files import file_lock
from attncli.signals import OnInterrupt
from attncli.text import visible

LOCK = "_attncli.lock"
_TEMPORARY = ".attn-"
_CHUNK = 2**24  # bytes that are sent at a time
# A file of theirs is seen once it is whole, and they have no folders; others give a file its name at the end.
_OBJECT_STORES = ("s3", "gcs", "abfs")


class Folder:
    """A folder of files, none of which is ever seen half-written; what cannot be done raises InputError.

    Args:
        place: an absolute path, or a URL.

    Attributes:
        name: as people are told.
    """

    def __init__(self, place: str) -> None:
        self.name = visible(without_password(place).removeprefix(f"{os.getcwd()}/")).rstrip("/")
        self._local = None if is_url(place) else Path(place)
        with self._translate("reach"):
            self._files, path = filesystem(place if is_url(place) else Path(place).as_uri())
            self._path = path.rstrip("/")
            self._is_store = self._files.protocol in _OBJECT_STORES

    def sizes(self) -> dict[str, int]:
        """Return the names and the sizes of its files; none where there is no such folder."""
        with self._translate("read"):
            self._files.invalidate_cache()
            try:
                found = self._files.ls(self._path, detail=True)
            except FileNotFoundError:
                return {}
            return {os.path.basename(one["name"]): one["size"] for one in found if one["type"] == "file"}

    def read(self, name: str) -> bytes | None:
        """Return what a small file holds; None where there is none."""
        with self._translate("read", name):
            try:
                return bytes(self._files.cat_file(f"{self._path}/{name}"))
            except FileNotFoundError:
                return None

    @contextmanager
    def write(self, name: str) -> Iterator[Path]:
        """Give the path of a file to write, which has its name once the block succeeds."""
        with TemporaryDirectory(prefix=_TEMPORARY, dir=self._local) as here:
            path, final = Path(here, name), f"{self._path}/{name}"
            yield path
            with self._translate("write", name), open(path, "rb+") as file:
                if self._local is not None:
                    os.fsync(file.fileno())  # it is on the disk before it has its name
                    os.replace(path, final)
                    return
                sent = final if self._is_store else f"{self._path}/{_TEMPORARY}{os.urandom(6).hex()}"
                with self._files.open(sent, "wb") as sink:
                    shutil.copyfileobj(file, sink, _CHUNK)
                if not self._is_store:
                    self._files.mv(sent, final)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Make the folder, and keep other runs out of one of this machine; a new one that stays empty goes again."""
        if self._local is None:
            if not self._is_store:
                with self._translate("write"):
                    self._files.makedirs(self._path, exist_ok=True)
            yield
            return
        folder, is_new = self._local, not self._local.is_dir()

        def leave() -> None:
            for left in folder.glob(f"{_TEMPORARY}*"):  # of processes that were killed
                shutil.rmtree(left, ignore_errors=True)
            self.remove(LOCK)
            if is_new:
                with suppress(OSError):  # it is not empty
                    folder.rmdir()

        with ExitStack() as stack:
            with self._translate("write"):
                folder.mkdir(exist_ok=True)
                stack.enter_context(file_lock(folder / LOCK))
            stack.enter_context(OnInterrupt(leave))
            stack.callback(leave)
            yield

    def remove(self, name: str) -> None:
        """Remove a file, if it can be."""
        with suppress(OSError):
            self._files.rm_file(f"{self._path}/{name}")

    @contextmanager
    def _translate(self, what: str, name: str = "") -> Iterator[None]:
        try:
            yield
        except AttnError:
            raise
        except Exception as error:  # of any library
            place = f"{self.name}/{name}" if name else self.name
            raise InputError(f"cannot {what} {place}: {error_reason(error)}") from None
