"""The files of a corpus: found by a name, a folder, a glob or a URL, opened and decompressed.

Remote files are read by fsspec, and by pyarrow's file systems of buckets through it. Errors of reading a file are one
sentence.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from attncli.errors import AttnError, InputError, LoadError, require
from attncli.files import check_file
from attncli.text import visible

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_WILDCARD = re.compile(r"[*?[]")
_URL_WILDCARD = re.compile(r"[*[]")  # in a URL a question mark begins the query
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_CHUNK = 2**22  # bytes of a remote file that are asked for at a time
_TIMEOUT = 5  # that a host is waited for; left to themselves, some clients try again for 15 minutes


class SentenceFile(NamedTuple):
    """A file of a corpus."""

    path: str  # of the file, in its file system
    root: str = ""  # a URL that opens the file system; empty for that of this machine

    @property
    def name(self) -> str:
        """Its name, without passwords; bytes that are not UTF-8 are escaped."""
        scheme = _SCHEME.match(self.root)
        name = self.path if scheme is None or "://" in self.path else scheme[0] + self.path
        return without_password(name).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")

    @property
    def compression(self) -> str | None:
        """Its compression, by its ending."""
        return _COMPRESSIONS.get(os.path.splitext(without_password(self.path))[1].lower())

    @property
    def ending(self) -> str:
        """Its ending without that of the compression."""
        path = without_password(self.path)
        return os.path.splitext(os.path.splitext(path)[0] if self.compression else path)[1].lower()

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open the file as a decompressed stream.

        Raises:
            InputError: it cannot be read.
            LoadError: a package that reads it is not installed.
        """
        with self.open_raw(is_stream=True) as raw:
            if self.root:
                raw = io.BufferedReader(raw, _CHUNK)
            if self.compression == "gzip":
                import gzip

                raw = gzip.GzipFile(fileobj=raw)
            elif self.compression == "zstd":
                require("a .zst file", "pyarrow")
                import pyarrow

                # It reads little at a time: the data before a damaged position is still read.
                raw = io.BufferedReader(pyarrow.CompressedInputStream(raw, "zstd"))
            yield raw

    @contextmanager
    def open_raw(self, is_stream: bool = False) -> Iterator[Any]:
        """Give the file as it is, for a reader that goes back and forth in it unless it is a stream; see `open`."""
        with ExitStack() as stack, translate_file_errors(self):
            if self.root:
                yield stack.enter_context(filesystem(self.root)[0].open(self.path, "rb"))
            else:
                check_file(self.path, is_stream=is_stream)
                yield stack.enter_context(open(self.path, "rb"))


def find_files(place: str) -> tuple[SentenceFile, ...]:
    """Return the files of a place, sorted: itself, or those of a folder and of those within, or those of a glob.

    Files and folders whose names begin with `.` or `_` are left out, unless they are named.

    Raises:
        InputError: there is none, or it cannot be listed.
        LoadError: a package that lists them is not installed.
    """
    if is_url(place):
        address, _, query = place.partition("?")
        is_glob = bool(_URL_WILDCARD.search(address)) and not address.lower().startswith("http")
        folder, pattern = _split_glob(address, _URL_WILDCARD) if is_glob else (address, "")
        root = folder + ("?" + query if query else "")
        with translate_file_errors(SentenceFile(folder, root)):
            paths, start = _remote(root, pattern)
    else:
        root, is_glob = "", bool(_WILDCARD.search(place)) and not os.path.lexists(place)
        start, pattern = _split_glob(place, _WILDCARD) if is_glob else (place, "")
        paths = list(_local(start, pattern))
    names_hidden = any(map(_is_hidden, pattern.split("/")))
    files = {path for path in paths if names_hidden or not any(map(_is_hidden, path[len(start) :].split("/")))}
    if not files:
        what = "no file fits {}" if is_glob else "the folder {} holds no file"
        name = visible(without_password(place))
        raise InputError(f"{what.format(name)}; names that begin with . or _ are skipped")
    return tuple(SentenceFile(path, root) for path in sorted(files))


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "_"))


def _split_glob(place: str, wild: re.Pattern[str]) -> tuple[str, str]:
    """Split a glob into the folder to search, and the pattern to search for."""
    match = wild.search(place)
    cut = place.rfind("/", 0, match.start() if match else None) + 1
    return place[:cut], place[cut:]


def _local(start: str, pattern: str) -> Iterator[str]:
    """Yield the files of this machine; neither way follows links to folders, which may lead back."""

    def refuse(error: OSError) -> None:
        raise InputError(f"cannot read {visible(str(error.filename))}: {error.strerror}")

    if pattern:
        pattern += "/*" * pattern.endswith("**")  # which would be folders alone
        paths = [start + str(found.relative_to(start)) for found in Path(start).glob(pattern)]
    elif os.path.isdir(start):
        walked = os.walk(start, onerror=refuse)
        paths = [os.path.join(within, name) for within, _, names in walked for name in names]
    else:  # a missing file is reported when it is opened
        yield start
        return
    yield from (path for path in paths if os.path.isfile(path) or not os.path.exists(path))  # no pipes


def _remote(root: str, pattern: str) -> tuple[list[str], str]:
    """Return the paths of the files behind a URL, and that of the folder that they are in."""
    system, path = filesystem(root)
    path = path.rstrip("/")
    if pattern:
        found = system.glob(f"{path}/{pattern}", detail=True)
        return [name for name, info in found.items() if info["type"] == "file"], path
    if system.info(path)["type"] == "directory":
        return system.find(path), path
    return [path], path


# --- file systems -------------------------------------------------------------------------------------------


def is_url(place: str) -> bool:
    """Return whether a place is not on this machine, or is named as if it were not."""
    return _SCHEME.match(place) is not None


def without_password(place: str) -> str:
    """Return a path or URL for display: without the password of a URL, and its query."""
    return re.sub(r"://[^/?]*@", "://", place).partition("?")[0] if is_url(place) else place


@cache
def filesystem(url: str) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a URL, and the path in it."""
    scheme = url.partition("://")[0].lower()
    require(f"a file at {scheme}://", "pyarrow", "fsspec")
    import pyarrow
    from fsspec.core import url_to_fs
    from fsspec.implementations.arrow import ArrowFSWrapper
    from pyarrow.fs import FileSystem

    if scheme in ("gs", "gcs") and "retry_limit_seconds=" not in url:
        url += f"{'&' if '?' in url else '?'}retry_limit_seconds={_TIMEOUT}"
    try:
        buckets, path = FileSystem.from_uri(url)
    except pyarrow.ArrowInvalid as error:
        if "Unrecognized filesystem type" not in str(error):
            raise
    else:
        return ArrowFSWrapper(buckets), path
    options: dict[str, Any] = {}
    if scheme in ("http", "https"):
        require(f"a file at {scheme}://", "aiohttp")
        from aiohttp import ClientTimeout

        options["client_kwargs"] = {"timeout": ClientTimeout(sock_connect=_TIMEOUT, sock_read=4 * _TIMEOUT)}
    try:
        system, path = url_to_fs(url, **options)
    except ImportError as error:
        raise LoadError(f"a file at {scheme}:// needs a package that is not installed: {visible(str(error))}") from None
    except ValueError:
        raise InputError(
            f"{visible(without_password(url))}: unknown scheme {scheme}://; expected s3, gs, hf, http or https"
        ) from None
    return system, path


# --- errors -------------------------------------------------------------------------------------------------


@contextmanager
def translate_file_errors(file: SentenceFile) -> Iterator[None]:
    """Turn errors of reading a file into InputErrors of one sentence."""
    try:
        yield
    except (AttnError, MemoryError):
        raise
    except Exception as error:  # of any library
        raise InputError(f"cannot read {visible(file.name)}: {error_reason(error)}") from None


_CUT_SHORT = re.compile("Compressed file ended before|Truncated compressed stream")
_DENIED = re.compile(
    r"ACCESS_DENIED|PERMISSION_DENIED|UNAUTHENTICATED|access token|credential|\b40[13]\b", re.IGNORECASE
)


def error_reason(error: Exception) -> str:
    """Return the message of an error, which for some libraries has many lines."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    text = str(getattr(error, "strerror", None) or error).strip() or type(error).__name__
    if _CUT_SHORT.match(text):
        return "it is cut short: its compressed data end too early"
    hint = "; are the credentials set that may read it?" if _DENIED.search(text) else ""
    return visible(re.split(r"\.?\n|\. |, url=", text)[0].rstrip(".")) + hint
