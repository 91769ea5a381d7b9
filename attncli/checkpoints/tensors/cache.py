"""The cache of tensors: ranges of bytes of files on the hub, beside the hub's own cache of whole files.

    attncli/tensors/models--org--name/<commit>/of-<file>.json    which version of the file that commit has
    attncli/tensors/models--org--name/<version>/<begin>-<end>    bytes of that version; see `ranges`

When something was last used is its time of modification.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import time
from typing import Any, NamedTuple

from attncli.checkpoints.folder import ALONE, INDEX, home
from attncli.errors import InputError
from attncli.files import MOST_TEXT, atomic_write, read_file
from attncli.text import visible

_LONGEST_PAUSE = 600  # seconds between two pieces of a range that another run is fetching
_ADAPTER = "adapter_config.json"


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
    for last_used, size, path in found:
        if total <= most:
            return
        is_being_fetched = path.suffix == ".part" and last_used > time() - _LONGEST_PAUSE
        if path not in used and not is_being_fetched:
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

    def has_parts(self, start: str = "") -> bool:
        """Return whether the commit has safetensors files that are the model: those beside an adapter are not.

        Args:
            start: of their names, for a model in a folder of the repository: checkpoint-500/.
        """
        files = self.files
        return not files.isdisjoint((start + ALONE, start + INDEX)) and start + _ADAPTER not in files

    @property
    def has_tokenizer(self) -> bool:
        """Whether transformers has found all files of the tokenizer before."""
        return self._read("tokenizer") is True

    def keep_tokenizer(self) -> None:
        """Note that it has."""
        if not self.has_tokenizer:
            self._write("tokenizer", True)

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
        with writing():
            self._folder.mkdir(parents=True, exist_ok=True)
            with atomic_write(self._folder / f"{name}.json") as aside:
                aside.write_text(json.dumps(said), encoding="utf-8")


def _named(file: str) -> str:
    return "of-" + hashlib.sha256(file.encode()).hexdigest()


@contextmanager
def writing() -> Iterator[None]:
    """Say of what cannot be written in the block that it is the cache.

    Raises:
        InputError: something cannot be.
    """
    try:
        yield
    except OSError as error:
        raise InputError(
            f"the cache of tensors {visible(str(place()))} cannot be written: {error.strerror or error}; HF_HOME says "
            "where it is, and --whole-files goes without it"
        ) from None
