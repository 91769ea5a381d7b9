"""Calls that wait until the program has imported a library, as torch, which reads the environment then."""

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
        finder.remove()


class _Finder(MetaPathFinder):
    def __init__(self, name: str, then: Callable[[], object]) -> None:
        self._name, self._then = name, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See importlib."""
        if fullname != self._name:
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]  # also finders of our own for the same module
        spec = next((spec for each in others if (spec := each.find_spec(fullname, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            self._extend(spec.loader)
        return spec

    def _extend(self, loader: Any) -> None:
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            if module.__name__ == self._name:  # an archive has one loader for all of its modules
                loader.__dict__.pop("exec_module", None)
                if self.remove():
                    self._then()

        loader.exec_module = exec_module

    def remove(self) -> bool:
        """Stop waiting; return whether it still did."""
        is_waiting = self in sys.meta_path
        if is_waiting:
            sys.meta_path.remove(self)
        return is_waiting
