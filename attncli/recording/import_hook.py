"""What is to happen as soon as the program has imported a library, and never if it does not import it.

torch reads the environment when it is imported. So a program that is run imports it where it does, not we before it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


@contextmanager
def when_imported(name: str, then: Callable[[], object]) -> Iterator[None]:
    """Call `then` once: now if a module is there already, else when it was imported within the block."""
    if name in sys.modules:
        then()
        yield
        return
    finder = _Finder(name, then)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    """Finds one module as the others find it, and has its loader say when it is there."""

    def __init__(self, name: str, then: Callable[[], object]) -> None:
        self._name = name
        self._then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See importlib."""
        if fullname != self._name:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:  # several of us may wait for one module
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: Any) -> None:
        """Have a loader say when it has loaded; it stays what it is, for who asks where a module comes from."""
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            if module.__name__ == self._name:
                loader.__dict__.pop("exec_module", None)
                self._loaded()

        loader.exec_module = exec_module

    def _loaded(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._then()
