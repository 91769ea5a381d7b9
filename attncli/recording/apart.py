"""Modules of the program's that are called like ones of ours: each of us finds its own.

python puts the folder of a program before all else, so that its `json.py` is what it imports, and all that it imports.
Here we were first: what the folder has too of what we imported is put aside while the program runs, and comes back,
with our paths, whenever we go on.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import FrozenImporter, PathFinder
from types import ModuleType

HAS_IMPORTED = "import sys; print(*sys.modules)"  # a program that python is asked for it with


class Apart:
    """Our modules and the program's, from before the program begins."""

    def __init__(self) -> None:
        self._path = [*sys.path]
        self._aside: dict[str, ModuleType] = {}
        self._from_the_start: set[str] | None = None

    def begin(self, folder: str) -> None:
        """Put the program's folder, or archive, where python puts it."""
        if not sys.flags.safe_path:
            sys.path[0] = folder
            self._put_aside([folder])

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Import what we import, within the block, as if there were no program."""
        theirs: dict[str, ModuleType] = {}
        path = sys.path
        for top in _tops():
            # What our paths do not have is the program's alone, and what they have at the same place is everybody's.
            if _is_another(top, self._path):
                theirs |= _taken(top)
        sys.modules.update(self._aside)
        sys.path = [*self._path]
        try:
            yield
        finally:
            sys.path = path
            self._put_aside([each for each in path if each not in self._path])
            sys.modules.update(theirs)

    def _put_aside(self, path: Sequence[str]) -> None:
        """Put aside what these paths have too, but for what python itself has when a program begins."""
        for top in [each for each in _tops() if _is_another(each, path)]:
            if self._from_the_start is None:
                self._from_the_start = _imported_by_python()
            if top not in self._from_the_start:
                self._aside |= _taken(top)
        for each in path:
            sys.path_importer_cache.pop(each, None)  # the program may write modules there, and looks for them itself


def _tops() -> Iterable[str]:
    return dict.fromkeys(name.partition(".")[0] for name in _names())


def _is_another(top: str, path: Sequence[str]) -> bool:
    """Return whether a module would be another one by these paths; a folder without a module is none."""
    if top in sys.builtin_module_names or FrozenImporter.find_spec(top) is not None:
        return False
    found = PathFinder.find_spec(top, path)
    if found is None or found.loader is None:
        return False
    own = getattr(sys.modules.get(top), "__spec__", None)
    return own is None or own.origin != found.origin


def _taken(top: str) -> dict[str, ModuleType]:
    """Take a module out of those that are imported, and what belongs to it."""
    names = [name for name in _names() if name == top or name.startswith(f"{top}.")]
    return {name: sys.modules.pop(name) for name in names}


def _names() -> list[str]:
    """Return what modules are called; a program may have others there than names."""
    return [name for name in [*sys.modules] if isinstance(name, str)]


def _imported_by_python() -> set[str]:
    """Return what python has imported before a program of its begins, which depends on the environment."""
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    command = [sys.executable, *options, "-c", HAS_IMPORTED]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return {*done.stdout.split()}
