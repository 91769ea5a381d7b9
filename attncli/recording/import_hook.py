"""Calls that wait until the program has imported a library, as torch, which reads the environment then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


@contextmanager
def when_imported(name: str, then: Callable[[], object]) -> Iterator[None]:
    """Call `then` once: now if a module is there already, else when it was imported within the block."""
    finder = _Finder(name, then)
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    def __init__(self, name: str, then: Callable[[], object]) -> None:
        self._name, self._then = name, then

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """See importlib."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        sys.meta_path.insert(0, self)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            loader.exec_module = partial(self._exec_module, loader.exec_module)
        return spec

    def _exec_module(self, load: Callable[[ModuleType], None], module: ModuleType) -> None:
        load(module)
        if module.__name__ == self._name and self in sys.meta_path:  # an archive has one loader for all of its modules
            sys.meta_path.remove(self)
            self._then()
