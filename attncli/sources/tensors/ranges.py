"""The cache of tensors: ranges of bytes of files on the hub, beside the hub's own cache of whole files.

    attncli/tensors/models--org--name/<commit>/<file>.json    which version of the file that commit has
    attncli/tensors/models--org--name/<version>/<begin>-<end>  bytes of that version

A range appears by a rename, whole, and never changes. What was cut off stays in a `.part`, and is gone on with. When a
file was last used is its time of modification.
"""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attncli.errors import InputError
from attncli.files import MOST_TEXT, claimed, read_file, written_aside
from attncli.sources.folder import ALONE, INDEX, home
from attncli.text import visible

_ADAPTER = "adapter_config.json"
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Version(NamedTuple):
    """Which of its contents a file has.

    Attributes:
        etag: what the hub calls it.
        size: in bytes.
    """

    etag: str
    size: int


def place() -> Path:
    """Return the folder of the cache."""
    return home() / "attncli" / "tensors"


def held() -> int:
    """Return how many bytes are in the cache."""
    return sum(size for _, size, _ in _files())


def trim(most: int, used: Collection[Path]) -> None:
    """Remove what was used longest ago, until no more than so many bytes are left; what this run uses stays."""
    found = sorted(_files())
    total = sum(size for _, size, _ in found)
    for _, size, path in found:
        if total <= most:
            return
        if path not in used:
            with suppress(OSError):  # another run was faster, or has it mapped on a system where that keeps it
                path.unlink()
                total -= size


def _files() -> Iterator[tuple[float, int, Path]]:
    for folder, _, names in os.walk(place()):
        for path in (Path(folder, name) for name in names if not name.endswith(".json")):
            with suppress(OSError):
                status = path.stat()
                yield status.st_mtime, status.st_size, path


class Notes:
    """What is known of the files of a repository at a commit, without asking."""

    def __init__(self, snapshot: Path) -> None:
        self.repository = place() / snapshot.parents[1].name
        self._folder = self.repository / snapshot.name

    def version(self, file: str) -> Version | None:
        """Return which version of a file the commit has; None if that is not known."""
        said = self._read(_named(file))
        etag, size = (said.get("etag"), said.get("size")) if type(said) is dict else (None, None)
        return Version(etag, size) if type(etag) is str and type(size) is int and size >= 0 else None

    def keep_version(self, file: str, version: Version) -> None:
        """Note which version of a file the commit has."""
        self._write(_named(file), version._asdict())

    @property
    def files(self) -> frozenset[str]:
        """The names of all files of the commit; none if they are not known."""
        said = self._read("files")
        return frozenset(map(str, said)) if type(said) is list else frozenset()

    @files.setter
    def files(self, names: Iterable[str]) -> None:
        self._write("files", sorted(names))

    @property
    def has_parts(self) -> bool:
        """Whether the commit has safetensors files that are the model: those beside an adapter are not."""
        return not self.files.isdisjoint((ALONE, INDEX)) and _ADAPTER not in self.files

    def forget(self) -> None:
        """Forget which versions the files have."""
        for path in self._folder.glob("of-*.json"):
            path.unlink(missing_ok=True)

    def _read(self, name: str) -> Any:
        try:
            return json.loads(read_file(self._folder / f"{name}.json", MOST_TEXT))
        except (OSError, ValueError, RecursionError):
            return None

    def _write(self, name: str, said: Any) -> None:
        with _writing():
            self._folder.mkdir(parents=True, exist_ok=True)
            with written_aside(self._folder / f"{name}.json") as aside:
                aside.write_text(json.dumps(said), encoding="utf-8")


def _named(file: str) -> str:
    return "of-" + hashlib.sha256(file.encode()).hexdigest()


class Ranges:
    """The ranges of one version of a file that are on this machine."""

    def __init__(self, repository: Path, etag: str) -> None:
        self._folder = repository / hashlib.sha256(etag.encode()).hexdigest()
        self._found = sorted(self._listed())
        self.used: set[Path] = set()

    def _listed(self) -> Iterator[tuple[int, int]]:
        for path in self._folder.glob("*-*"):
            begin, _, end = path.name.partition("-")
            if begin.isdecimal() and end.isdecimal():
                yield int(begin), int(end)

    def has(self, begin: int, end: int) -> bool:
        """Return whether the bytes are here, if nobody has removed them in the meantime."""
        return begin == end or self._around(begin, end) is not None

    def find(self, begin: int, end: int) -> Bytes | None:
        """Return the bytes, mapped; None if they are not here."""
        if begin == end:
            return np.empty(0, np.uint8)
        while (around := self._around(begin, end)) is not None:
            path = self._path(*around)
            try:
                mapped = np.memmap(path, np.uint8, mode="r")
                os.utime(path)
            except (OSError, ValueError):  # removed by another run
                mapped = np.empty(0, np.uint8)
            if len(mapped) == around[1] - around[0]:
                self.used.add(path)
                return np.asarray(mapped)[begin - around[0] : end - around[0]]
            path.unlink(missing_ok=True)  # no run leaves it so
            self._found.remove(around)
            self.__dict__.pop("_widest", None)
        return None

    def header(self) -> bytes | None:
        """Return the range at the beginning of the file; None if there is none."""
        ends = [end for begin, end in self._found if begin == 0]
        found = self.find(0, max(ends)) if ends else None
        return None if found is None else found.tobytes()

    @cached_property
    def _widest(self) -> list[tuple[int, int]]:
        """Of the ranges up to each one, in their order, the one that ends last."""
        return list(accumulate(self._found, lambda one, other: max(one, other, key=lambda each: each[1])))

    def _around(self, begin: int, end: int) -> tuple[int, int] | None:
        """Return a range that is here and in which the bytes are."""
        place = bisect_right(self._found, begin, key=lambda each: each[0])
        return self._widest[place - 1] if place and end <= self._widest[place - 1][1] else None

    def _path(self, begin: int, end: int) -> Path:
        return self._folder / f"{begin}-{end}"

    def fill(self, begin: int, end: int, fetched: Callable[[int, int], Iterator[bytes]]) -> None:
        """Bring bytes here.

        Args:
            begin: the first of them.
            end: the one after the last.
            fetched: gives all bytes between two places; it is asked for what an interrupted run has not left.

        Raises:
            InputError: the cache cannot be written.
        """
        final = self._path(begin, end)
        with _writing():
            final.parent.mkdir(parents=True, exist_ok=True)
            part = final.with_name(final.name + ".part")
            with claimed(part, waits=True) as is_alone:
                if not is_alone:
                    part.unlink(missing_ok=True)
                    part = final.with_name(f"{final.name}.{os.urandom(6).hex()}.part")
                if final.exists():  # another run was faster
                    part.unlink(missing_ok=True)
                else:
                    self._fill(part, begin, end, fetched)
                    os.replace(part, final)
        insort(self._found, (begin, end))
        self.__dict__.pop("_widest", None)
        self.used.add(final)

    def _fill(self, part: Path, begin: int, end: int, fetched: Callable[[int, int], Iterator[bytes]]) -> None:
        with open(part, "ab", buffering=0) as file:
            if file.tell() > end - begin:
                file.truncate(0)
            for some in fetched(begin + file.seek(0, os.SEEK_END), end):
                file.write(some)
            assert file.tell() == end - begin
            os.fsync(file.fileno())


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"the cache of tensors {visible(str(place()))} cannot be written: {error.strerror or error}; HF_HOME says "
            "where it is, and --whole-files goes without it"
        ) from None
