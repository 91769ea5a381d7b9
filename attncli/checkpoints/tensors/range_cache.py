"""Ranges of a file's bytes in the cache of tensors, each a file of its own, named by where it begins and ends.

A range appears by a rename, whole, and never changes. What was cut off stays in a `.part`, and is gone on with.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from attncli.checkpoints.tensors.cache import Version, writing
from attncli.files import file_lock

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Ranges:
    """The ranges of one version of a file that are on this machine."""

    def __init__(self, repository: Path, version: Version) -> None:
        self._folder = repository / hashlib.sha256(f"{version.size} {version.etag}".encode()).hexdigest()
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
            mapped: Bytes = np.empty(0, np.uint8)
            with suppress(OSError, ValueError):  # removed by another run, or empty
                mapped = np.asarray(np.memmap(path, np.uint8, mode="r"))
            if len(mapped) == around[1] - around[0]:
                self.used.add(path)
                with suppress(OSError):  # a cache that is only read
                    os.utime(path)
                return mapped[begin - around[0] : end - around[0]]
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
        return list(accumulate(self._found, _wider))

    def _around(self, begin: int, end: int) -> tuple[int, int] | None:
        """Return a range that is here and in which the bytes are."""
        place = bisect_right(self._found, begin, key=_begin)
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
        with writing():
            final.parent.mkdir(parents=True, exist_ok=True)
            part = final.with_name(final.name + ".part")
            with file_lock(part, waits=True) as is_alone:
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


def _wider(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return other if other[1] > one[1] else one


def _begin(span: tuple[int, int]) -> int:
    return span[0]
