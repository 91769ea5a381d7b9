"""A corpus as a folder of parts, so that any run goes on where one ended; `_attncli.json` says what makes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

from attncli._version import __version__
from attncli.corpus.folders import LOCK, Folder, folder_at
from attncli.corpus.parts import Receipt, is_part
from attncli.errors import InputError, UsageError
from attncli.signals import OnInterrupt
from attncli.text import plural, visible

SCHEMA = "attncli.dataset/1"
MANIFEST = "_attncli.json"


class Tally:
    """What a run has written, from the receipts of its parts.

    Attributes:
        parts: how many there are.
        before: how many of them were there before.
        rows: of all.
        sentences: of all.
        failures: how many of these were bad.
    """

    def __init__(self) -> None:
        self.parts = self.before = self.rows = self.sentences = self.failures = 0
        self.names: set[str] = set()

    def add(self, receipt: Receipt) -> None:
        """Count a part."""
        self.parts += 1
        self.before += receipt.was_there
        self.rows += receipt.rows
        self.sentences += receipt.sentences
        self.failures += receipt.failures
        self.names.add(receipt.name)

    def __str__(self) -> str:
        there = f", {self.before} of them there before" if self.before else ""
        return f"{plural(self.sentences, 'sentence')} in {plural(self.parts, 'part')}{there}"


@contextmanager
def dataset(place: str, made: Mapping[str, str], files: Sequence[str] = ()) -> Iterator[Tally]:
    """Hold a folder for the parts of a run, and say in it what makes them; it is whole once the block succeeds.

    Args:
        place: of the folder: an absolute path, or a URL.
        made: what its numbers depend on, by names: the command, its options.
        files: the names of all files that are read, in order.

    Yields:
        What takes the receipts of all parts.

    Raises:
        InputError: the folder holds something else, or parts of another run; or it cannot be written.
    """
    folder = folder_at(place)
    manifest: dict[str, Any] = {"schema": SCHEMA, "attncli": __version__, "made": dict(made), "files": list(files)}
    with folder.held():
        names = folder.names() - {LOCK}
        others = sorted(name for name in names if name != MANIFEST and not is_part(name))
        if others:
            raise InputError(f"{folder.name} holds {visible(others[0])}; give a folder that holds the parts alone")
        has_parts = any(map(is_part, names))
        if has_parts:
            _check_same(folder, manifest)
        else:
            _say(folder, manifest)
        tally = Tally()

        def undo() -> None:
            if not has_parts and not any(map(is_part, folder.names())):
                folder.remove(MANIFEST)

        try:
            with OnInterrupt(undo):
                yield tally
        except BaseException:
            undo()
            raise
        if odd := sorted(name for name in folder.names() if is_part(name) and name not in tally.names):
            raise InputError(f"{folder.name}/{odd[0]} is of sentences that are no longer there; remove it")
        whole = {name: getattr(tally, name) for name in ("parts", "rows", "sentences", "failures")}
        _say(folder, {**manifest, "whole": whole})


def parts_of(place: str) -> list[str]:
    """Return the names of the parts of a dataset, sorted.

    Raises:
        InputError: it is none, or the run that writes it has not ended.
    """
    folder = folder_at(place)
    manifest = _manifest(folder)
    parts = sorted(filter(is_part, folder.names()))
    if manifest is None:
        raise InputError(f"{folder.name} is no folder that attn has written parts into")
    if "whole" not in manifest or manifest["whole"]["parts"] != len(parts):
        raise InputError(
            f"{folder.name} is not whole: {plural(len(parts), 'part')} of it {'is' if len(parts) == 1 else 'are'} "
            "there; run the command that writes it again, which goes on, or name the parts that are to be read"
        )
    return parts


def opened_parts(place: str) -> Iterator[tuple[IO[bytes], str]]:
    """Yield the parts of a dataset, open to be read one after the other, with their names; see `parts_of`."""
    folder = folder_at(place)
    for name in parts_of(place):
        file = folder.opened(name)
        if file is not None:
            with file:
                yield file, f"{folder.name}/{name}"


def _say(folder: Folder, manifest: Mapping[str, Any]) -> None:
    with folder.written(MANIFEST) as path:
        path.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _manifest(folder: Folder) -> dict[str, Any] | None:
    """Return what a folder says of its parts; None where it says nothing."""
    file = folder.opened(MANIFEST)
    if file is None:
        return None
    with file:
        try:
            found = json.loads(file.read())
            whole = found.get("whole", {"parts": 0})
            if found["schema"] != SCHEMA or type(whole["parts"]) is not int:
                raise ValueError
            said = [found["attncli"], *found["made"].values(), *found["files"]]
            if not all(isinstance(each, str) for each in said):
                raise TypeError
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise InputError(f"{folder.name}/{MANIFEST} is none that attn {__version__} writes") from None
    return dict(found)


def _check_same(folder: Folder, manifest: Mapping[str, Any]) -> None:
    """Make sure that the parts that are there are those of this run.

    Raises:
        UsageError: they are of another one.
    """
    there = _manifest(folder)
    if there is None:
        raise InputError(f"{folder.name} holds parts, and no {MANIFEST} that says what made them; give another folder")
    old, new = map(_told, (there, manifest))
    for name in {**old, **new}:
        before, now = old.get(name), new.get(name)
        if before != now:
            raise UsageError(
                f"{folder.name} holds parts of another run: {visible(name)} was {_shown(before)} and is "
                f"{_shown(now)}; give another folder, or the options of that run"
            )


def _told(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return what a folder says of what made it, by names."""
    files = {f"file {number}": name for number, name in enumerate(manifest["files"])}
    return {"attn": manifest["attncli"], **manifest["made"], **files}


def _shown(value: str | None) -> str:
    return "not given" if value is None else visible(value)
