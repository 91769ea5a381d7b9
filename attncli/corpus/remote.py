"""Opens a file on this machine or behind a URL, decompressed, and says in one sentence why it cannot be read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from attncli.errors import AttnError, InputError, LoadError, require
from attncli.files import check_file
from attncli.text import visible

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_CHUNK = 2**22  # bytes of a remote file that are asked for at a time
_TIMEOUT = 5  # that a host is waited for; left to themselves, some clients try again for 15 minutes


class SentenceFile(NamedTuple):
    """A file of a corpus.

    Attributes:
        path: of the file, in its file system.
        root: a URL that opens the file system; empty for that of this machine.
    """

    path: str
    root: str = ""

    @property
    def name(self) -> str:
        """What it is called, without passwords; of bytes that are no UTF-8, their numbers."""
        scheme = _SCHEME.match(self.root)
        name = self.path if scheme is None or "://" in self.path else scheme[0] + self.path
        return without_password(name).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")

    @property
    def compression(self) -> str | None:
        """How it is compressed, by its ending."""
        return _COMPRESSIONS.get(os.path.splitext(without_password(self.path))[1].lower())

    @property
    def ending(self) -> str:
        """The ending that says what is in it."""
        path = without_password(self.path)
        return os.path.splitext(os.path.splitext(path)[0] if self.compression else path)[1].lower()

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Give what the file holds, unpacked.

        Raises:
            InputError: it cannot be read.
            LoadError: what would read it is not installed.
        """
        with ExitStack() as stack, translate_file_errors(self):
            if self.root:
                raw: Any = stack.enter_context(self._filesystem().open_input_stream(self.path, None, _CHUNK))
            else:
                check_file(self.path, is_stream=True)
                raw = stack.enter_context(open(self.path, "rb"))
            yield self._decompressed(raw)

    @contextmanager
    def open_seekable(self) -> Iterator[Any]:
        """Give the file, for a reader that goes back and forth in it; see `open`."""
        with ExitStack() as stack, translate_file_errors(self):
            if self.root:
                yield stack.enter_context(self._filesystem().open_input_file(self.path))
            else:
                check_file(self.path)
                yield stack.enter_context(open(self.path, "rb"))

    def _filesystem(self) -> FileSystem:
        return filesystem(self.root)[0]

    def _decompressed(self, raw: Any) -> Any:
        import io

        if self.compression == "gzip":
            import gzip

            return gzip.GzipFile(fileobj=raw)
        if self.compression == "zstd":
            require("a .zst file", "pyarrow")
            import pyarrow

            raw = pyarrow.CompressedInputStream(raw, "zstd")
        # It asks for little at a time: what comes before a place that cannot be unpacked is read.
        return raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(raw)


def is_url(place: str) -> bool:
    """Return whether a place is not on this machine, or is named as if it were not."""
    return _SCHEME.match(place) is not None


def without_password(place: str) -> str:
    """Return a place as people may see it: without the password of a URL, and what it asks of a server."""
    return re.sub(r"://[^/?]*@", "://", place).partition("?")[0] if is_url(place) else place


@contextmanager
def translate_file_errors(file: SentenceFile) -> Iterator[None]:
    """Say in one sentence what keeps a file from being read.

    Raises:
        InputError: something does.
    """
    try:
        yield
    except AttnError:
        raise
    except Exception as error:
        if not (file.root or _is_file_error(error)):
            raise
        raise InputError(f"cannot read {visible(file.name)}: {error_reason(error)}") from None


def _is_file_error(error: Exception) -> bool:
    """Return whether an error is about what is in a file, of whatever reads it."""
    import sys
    import zlib

    kinds: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error)
    if "pyarrow" in sys.modules:
        import pyarrow

        kinds = (*kinds, pyarrow.ArrowException)
    return isinstance(error, kinds)


_CUT_SHORT = re.compile("Compressed file ended before|Truncated compressed stream")
_DENIED = re.compile(
    r"ACCESS_DENIED|PERMISSION_DENIED|UNAUTHENTICATED|access token|credential|\b40[13]\b", re.IGNORECASE
)


def error_reason(error: Exception) -> str:
    """Return what an error says, which for some libraries goes on for lines."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    text = str(getattr(error, "strerror", None) or error).strip() or type(error).__name__
    if _CUT_SHORT.match(text):
        return "it is cut short: its compressed data end too early"
    hint = "; are the credentials set that may read it?" if _DENIED.search(text) else ""
    return visible(re.split(r"\.?\n|\. |, url=", text)[0].rstrip(".")) + hint


@cache
def filesystem(url: str) -> tuple[FileSystem, str]:
    """Return the file system of a URL, and the path in it."""
    scheme = url.partition("://")[0].lower()
    require(f"a file at {scheme}://", "pyarrow")
    import pyarrow
    from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem

    if scheme in ("gs", "gcs") and "retry_limit_seconds=" not in url:
        url += f"{'&' if '?' in url else '?'}retry_limit_seconds={_TIMEOUT}"
    try:
        found: tuple[FileSystem, str] = FileSystem.from_uri(url)
    except pyarrow.ArrowInvalid as error:
        if "Unrecognized filesystem type" not in str(error):
            raise
    else:
        return found
    require(f"a file at {scheme}://", "fsspec")
    from fsspec.core import url_to_fs

    options: dict[str, Any] = {}
    if scheme in ("http", "https"):
        require(f"a file at {scheme}://", "aiohttp")
        from aiohttp import ClientTimeout

        options["client_kwargs"] = {"timeout": ClientTimeout(sock_connect=_TIMEOUT, sock_read=4 * _TIMEOUT)}
    try:
        system, path = url_to_fs(url, **options)
    except ImportError as error:
        raise LoadError(f"a file at {scheme}:// takes a package that is not installed: {visible(str(error))}") from None
    except ValueError:
        raise InputError(
            f"{visible(without_password(url))}: nothing here reads {scheme}://; expected s3, gs, hf, http or https"
        ) from None
    return PyFileSystem(FSSpecHandler(system)), path
