"""Finds the files of a corpus by a name, a folder, a glob or a URL, opens and decompresses them.

Remote files are read by fsspec. Errors of reading a file are one sentence.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

from attncli.errors import AttnError, InputError, LoadError, require
from attncli.files import check_file
from attncli.text import visible

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_HIDDEN = re.compile(r"(^|/)[._]")
_CHUNK = 2**22  # bytes of a remote file that are asked for at a time


class SentenceFile(NamedTuple):
    """File of a corpus."""

    path: str  # of the file, in its file system
    root: str = ""  # a URL that opens the file system; empty for that of this machine

    @property
    def name(self) -> str:
        """Its name, without passwords; bytes that are not UTF-8 are escaped."""
        scheme = _SCHEME.match(self.root)
        name = self.path if scheme is None or "://" in self.path else scheme[0] + self.path
        return without_password(name).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")

    @property
    def endings(self) -> tuple[str, str]:
        """Its ending without that of a compression, and that: `.gz`, `.zst` or nothing."""
        path, ending = os.path.splitext(without_password(self.path).lower())
        return (os.path.splitext(path)[1], ending) if ending in (".gz", ".zst") else (ending, "")

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
            compression = self.endings[1]
            if compression == ".zst":
                require("a .zst file", "fsspec", "zstandard")
                from fsspec.compression import compr

                raw = io.BufferedReader(compr["zstd"](raw, mode="rb"))
            elif compression == ".gz":
                import gzip

                raw = gzip.GzipFile(fileobj=raw)
            yield raw

    @contextmanager
    def open_raw(self, is_stream: bool = False) -> Iterator[Any]:
        """Give the file as it is, for a reader that goes back and forth in it unless it is a stream; see `open`."""
        with translate_file_errors(self):
            if not self.root:
                check_file(self.path, is_stream=is_stream)
            opener = _file_system(self.root)[0].open if self.root else open
            with opener(self.path, "rb") as stream:
                yield stream


def find_files(location: str) -> tuple[SentenceFile, ...]:
    """Return the files of a location, sorted: itself, or those of a folder and of those within, or those of a glob.

    Files and folders whose names begin with `.` or `_` are left out, unless they are named.

    Raises:
        InputError: there is none, or it cannot be listed.
        LoadError: a package that lists them is not installed.
    """
    root = location if is_url(location) else ""
    with translate_file_errors(SentenceFile(location, root)):
        start, pattern, paths = _remote(location) if root else _local(location)
    names = {path: path[len(start) :].lstrip("/") for path in sorted(paths)}
    files = [path for path, name in names.items() if _HIDDEN.search(pattern) or not _HIDDEN.search(name)]
    if not files:
        what = "no file fits {}" if pattern else "the folder {} holds no file"
        name = visible(without_password(location))
        raise InputError(f"{what.format(name)}; names that begin with . or _ are skipped")
    return tuple(SentenceFile(path, root) for path in files)


def _split_glob(location: str) -> tuple[str, str]:
    """Split a glob into the folder to search, and the pattern to search for."""
    wild = re.search(r"[*?[]", location)
    cut = location.rfind("/", 0, wild.start()) + 1 if wild else len(location)
    return location[:cut], location[cut:]


def _local(location: str) -> tuple[str, str, list[str]]:
    """Return the searched folder, the pattern, and the files, without following links, which may lead back."""

    def refuse(error: OSError) -> None:
        raise error

    start, pattern = (location, "") if os.path.lexists(location) else _split_glob(location)
    if pattern:
        matches = Path(start).glob(pattern + "/*" * pattern.endswith("**"))  # which would be folders alone
        paths = [start + str(path.relative_to(start)) for path in matches]
    elif os.path.isdir(start):
        walked = os.walk(start, onerror=refuse)
        paths = [os.path.join(within, name) for within, _, names in walked for name in names]
    else:  # a missing file is reported when it is opened
        return location, "", [location]
    return start, pattern, [path for path in paths if os.path.isfile(path) or not os.path.exists(path)]  # no pipes


def _remote(url: str) -> tuple[str, str, list[str]]:
    """Return the same of a URL; the web has no globs."""
    system, path = _file_system(url)
    start, pattern = (path, "") if url.lower().startswith("http") else _split_glob(path)
    if pattern:
        return start, pattern, [name for name, info in system.glob(path, detail=True).items() if info["type"] == "file"]
    return start, "", system.find(path) if system.info(path)["type"] == "directory" else [path]


@cache
def _file_system(url: str) -> tuple[Any, str]:
    scheme = url.partition("://")[0].lower()
    require(f"a file at {scheme}://", "fsspec")
    from fsspec.core import url_to_fs

    try:
        return url_to_fs(url)
    except ImportError as error:
        raise LoadError(f"a file at {scheme}:// needs a package that is not installed: {visible(str(error))}") from None
    except ValueError:
        known = f"unknown scheme {scheme}://; expected s3, gs, hf, http or https"
        raise InputError(f"{visible(without_password(url))}: {known}") from None


def is_url(location: str) -> bool:
    """Return whether a location is not on this machine, or is named as if it were not."""
    return _SCHEME.match(location) is not None


def without_password(location: str) -> str:
    """Return a path or URL for display: without the password of a URL, and its query."""
    return re.sub(r"://[^/?]*@", "://", location).partition("?")[0] if is_url(location) else location


@contextmanager
def translate_file_errors(file: SentenceFile) -> Iterator[None]:
    """Turn errors of reading a file, of any library, into InputErrors of one sentence."""
    try:
        yield
    except (AttnError, MemoryError):
        raise
    except Exception as error:
        cause: BaseException = error
        while isinstance(cause.__cause__, Exception):
            cause = cause.__cause__
        text = str(getattr(cause, "strerror", None) or cause).strip() or type(cause).__name__
        denied = re.search(r"ACCESS_?DENIED|access token|credential|\b40[13]\b", text, re.IGNORECASE)
        hint = "; are the credentials set that may read it?" if denied else ""
        why = visible(re.split(r"\.?\n|\. |, url=", text)[0].rstrip(".")) + hint
        if isinstance(error, EOFError):
            why = "it is cut short: its compressed data end too early"
        raise InputError(f"cannot read {visible(file.name)}: {why}") from None
