"""Finds the files of a folder or a glob, on this machine or behind a URL."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from attncli.corpus.remote import SentenceFile, filesystem, is_url, translate_file_errors, without_password
from attncli.errors import InputError, require
from attncli.text import visible

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_WILDCARD = re.compile(r"[*?[]")
_URL_WILDCARD = re.compile(r"[*[]")  # in a URL a question mark begins what is asked of a server


def find_files(place: str) -> tuple[SentenceFile, ...]:
    """Return the files of a place, sorted: itself, or those of a folder and of those within, or those of a glob.

    Files and folders whose names begin with `.` or `_` are left out, unless they are named.

    Raises:
        InputError: there is none, or that cannot be said.
        LoadError: what would look is not installed.
    """
    found = list(_remote(place)) if is_url(place) else [SentenceFile(path) for path in _local(place)]
    if not found:
        is_glob = (_URL_WILDCARD if is_url(place) else _WILDCARD).search(place)
        what = ("no file fits {}" if is_glob else "the folder {} holds no file").format(
            visible(without_password(place))
        )
        raise InputError(f"{what}; those whose names begin with . or _ do not count")
    return tuple(sorted(set(found)))  # a glob may find a file and its folder


def _local(place: str) -> Iterator[str]:
    if os.path.lexists(place) or not _WILDCARD.search(place):  # what is not there is said where it is opened
        yield from _walk(place) if os.path.isdir(place) else [place]
        return
    folder, pattern = _split_glob(place, _WILDCARD)
    for found in Path(folder).glob(pattern):  # whose `**` follows no links to folders, which may lead back
        within = "" if found == Path(folder) else str(found.relative_to(folder))
        if _is_included(within, pattern):
            path = folder + within
            if os.path.isdir(path):
                yield from () if "**" in pattern and os.path.islink(path) else _walk(path)
            elif _is_readable(path):
                yield path


def _walk(folder: str) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise InputError(f"cannot read {visible(str(error.filename))}: {error.strerror}")

    for within, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        for path in (os.path.join(within, name) for name in names if not _is_hidden(name)):
            if _is_readable(path):
                yield path


def _is_readable(path: str) -> bool:
    return os.path.isfile(path) or not os.path.exists(path)  # no pipes; a link to nothing is said


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "_"))


def _split_glob(place: str, wild: re.Pattern[str]) -> tuple[str, str]:
    """Return the folder that a glob looks through, and what it looks for there."""
    found = wild.search(place)
    cut = place.rfind("/", 0, found.start() if found else None) + 1
    return place[:cut], place[cut:]


def _is_included(within: str, pattern: str) -> bool:
    """Return whether a path in the folder of a glob is not hidden, or the glob names what is."""
    return any(map(_is_hidden, pattern.split("/"))) or not any(map(_is_hidden, within.split("/")))


def _remote(url: str) -> Iterator[SentenceFile]:
    """Yield the files of a URL."""
    address, _, query = url.partition("?")
    is_glob = _URL_WILDCARD.search(address) and not url.lower().startswith("http")
    folder, pattern = _split_glob(address, _URL_WILDCARD) if is_glob else (address, "")
    root = folder + ("?" + query if query else "")
    with translate_file_errors(SentenceFile(folder, root)):
        system, path = filesystem(root)
        if not pattern and _is_file(system, path):
            yield SentenceFile(path, root)
            return
        for found in _found(system, path.rstrip("/"), pattern):
            yield SentenceFile(found, root)


def _is_file(system: FileSystem, path: str) -> bool:
    """Return whether a path is a file, and no folder.

    Raises:
        OSError: it is neither; of `fsspec` it is the error of where it was looked for.
    """
    kind = system.get_file_info(path).type.name
    if kind == "NotFound":
        if hasattr(system, "handler"):
            system.handler.fs.info(path)
        raise FileNotFoundError(errno.ENOENT, "there is no such file or folder")
    return bool(kind != "Directory")


def _found(system: FileSystem, folder: str, pattern: str) -> Iterator[str]:
    """Yield the paths of the files in a folder, and in those within, that a pattern fits, or their folders."""
    from pyarrow.fs import FileSelector

    require("a glob", "fsspec")
    from fsspec.utils import glob_translate

    fits = re.compile(glob_translate(pattern or "**"))
    for info in system.get_file_info(FileSelector(folder, recursive=True, allow_not_found=True)):
        within = info.path[len(folder) :].lstrip("/")
        parts = within.split("/")
        above = ("/".join(parts[: count + 1]) for count in range(len(parts)))
        if info.is_file and _is_included(within, pattern) and any(map(fits.match, above)):
            yield info.path
