"""Places of attention in a program: the user's line, and the module's name in the model.

The line is the innermost one of the user's own code. A library is not the user's: its models are called from a line of
the program, and the name of the module tells the place in the library. A program of libraries alone has their lines.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence

_OURS = os.path.abspath(os.path.join(__file__, *[os.pardir] * 2)) + os.sep  # the package
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
# Modules of torch around a model, and their names for it, which mean nothing.
WRAPPERS = {"DataParallel": "module", "DistributedDataParallel": "module", "OptimizedModule": "_orig_mod"}


def user_line(start: str) -> tuple[str, int, str]:
    """Return file, line and qualified function of the running line, with files named from the folder `start`."""
    frame: FrameType | None = sys._getframe(1)
    library: FrameType | None = None
    while frame is not None and (owner := _owner(frame.f_code.co_filename)) != "user":
        if owner == "library" and library is None:
            library = frame
        frame = frame.f_back
    frame = frame or library
    if frame is None:  # torch called itself, in a thread of its own
        return "<torch>", 0, "<module>"
    code = frame.f_code
    return _relative(code.co_filename, start), frame.f_lineno, code.co_qualname.replace("<locals>.", "")


def line_of(frame: FrameType | None, start: str) -> str | None:
    """Return the line of the user's own code that called torch, `train.py:40`; None where a library did."""
    while frame is not None and (owner := _owner(frame.f_code.co_filename)) == "torch":
        frame = frame.f_back
    if frame is None or owner != "user":
        return None
    return f"{_relative(frame.f_code.co_filename, start)}:{frame.f_lineno}"


@cache
def _owner(file: str) -> str:
    if file.startswith(("<frozen ", "<eval_with_key>")):
        return "torch"
    path = os.path.abspath(file)
    if path.startswith((_OURS, _TORCH)):
        return "torch"
    is_installed = path.startswith(_INSTALLED) or f"{os.sep}site-packages{os.sep}" in path
    return "library" if is_installed and not file.startswith("<") else "user"


@cache
def _relative(file: str, start: str) -> str:
    if file.startswith("<"):
        return file
    path = os.path.join(start, file)
    relative = os.path.relpath(path, start)
    return path if relative.startswith(os.pardir) else relative


class ModuleNames:
    """The names of modules in the models that a program calls."""

    def __init__(self) -> None:
        self._names = WeakKeyDictionary[nn.Module, WeakKeyDictionary[nn.Module, str | None]]()

    def name(self, running: Sequence[nn.Module]) -> str | None:
        """Return the name of the innermost of the modules that run, outermost first, in the outermost of them.

        A module that its model does not hold has the name of the one that called it.
        """
        while len(running) > 1 and type(running[0]).__name__ in WRAPPERS:
            running = running[1:]
        names = (self._name(running[0], module) for module in reversed(running))
        return next((name for name in names if name is not None), None)

    def _name(self, root: nn.Module, module: nn.Module) -> str | None:
        names = self._names.setdefault(root, WeakKeyDictionary())
        if module not in names:
            names.update({inside: name for name, inside in root.named_modules()})
            names.setdefault(module, None)
        return names[module]
