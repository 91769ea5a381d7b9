"""Files and folders that begin with what is typed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from attncli.cli.completion.candidate import Candidate

_MOST = 1000  # entries of a folder that are looked into; a TAB must stay quick in a folder of a million files


def files(typed: str, endings: Sequence[str], has_home: bool) -> Iterator[Candidate]:
    """Yield the files with one of the endings (all, if there are none), and the folders to go on into.

    Args:
        typed: what they begin with.
        endings: of their names.
        has_home: whether a ~ that is typed first is somebody's home folder.
    """
    for path, entry in _entries(typed, has_home):
        if _is_folder(entry):
            yield Candidate(path + "/", "folder", goes_on=True)
        elif not endings or entry.name.lower().endswith(tuple(endings)):
            yield Candidate(path)


def folders_with(name: str, typed: str, has_home: bool) -> Iterator[Candidate]:
    """Yield the folders that hold a file of that name, and those to go on into; see `files`.

    The latter are those with such a folder directly inside; where there is neither, all of them.
    """
    others, found = [], False
    for path, entry in _entries(typed, has_home):
        if not _is_folder(entry):
            continue
        if os.path.isfile(os.path.join(entry.path, name)):
            found = True
            yield Candidate(path, f"holds a {name}")
        elif _leads_to(name, entry):
            found = True
            yield Candidate(path + "/", "folder", goes_on=True)
        else:
            others.append(Candidate(path + "/", "folder", goes_on=True))
    if typed and not found:
        yield from others


def _leads_to(name: str, folder: os.DirEntry[str]) -> bool:
    return any(os.path.isfile(os.path.join(entry.path, name)) for entry in _listed(folder.path))


def _entries(typed: str, has_home: bool) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield what begins as typed, as it would be typed, in the order of names."""
    cut = max(typed.rfind("/"), typed.rfind(os.sep)) + 1
    folder, begins = typed[:cut], typed[cut:]
    has_home = has_home and typed.startswith("~")
    if has_home and not folder:
        return  # the name of a user, so far
    for entry in sorted(_listed((os.path.expanduser(folder) if has_home else folder) or "."), key=lambda one: one.name):
        is_hidden = entry.name.startswith(".") and not begins.startswith(".")
        # A name with a line break or an escape sequence is not sent to a terminal.
        if entry.name.startswith(begins) and entry.name.isprintable() and not is_hidden:
            yield folder + entry.name, entry


def _listed(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry, _ in zip(entries, range(_MOST), strict=False)]
    except (OSError, ValueError):  # it has no name that the system can look up
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
