"""Functions of torch in whose place the program put its own, as to count calls: what torch runs of them.

torch tells a mode which function was called by looking it up by its name, and so finds the program's. That has been
called already, and has called torch's, which asks the mode: the mode goes on with torch's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import FrameType, FunctionType
from typing import Any

import torch
from torch.overrides import handle_torch_function

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
# The kinds of functions that are torch's, whoever names them.
BUILTIN = frozenset(
    map(type, (torch.matmul, torch._C.TensorBase.matmul, torch._C.TensorBase.__matmul__, torch.Tensor.T.__get__))  # type: ignore[attr-defined]
)


def as_torch_runs(func: Callable[..., Any], caller: FrameType | None) -> Callable[..., Any]:
    """Return the function that runs, which a mode takes for `func`.

    Args:
        func: what the mode was called with; of no kind of `BUILTIN`.
        caller: the frame that called the mode.
    """
    if _is_torchs(func) or caller is None:
        return func
    if caller.f_code is handle_torch_function.__code__ and caller.f_back is not None:
        code = caller.f_back.f_code
        is_replaced = code.co_filename.startswith(_TORCH) and code is not getattr(func, "__code__", None)
        return _again(caller.f_back) if is_replaced and not code.co_freevars else func
    for name, method in vars(torch.Tensor).items():
        if method is func and hasattr(torch._C.TensorBase, name):
            return getattr(torch._C.TensorBase, name)
    return func


def _is_torchs(func: Callable[..., Any]) -> bool:
    if isinstance(func, FunctionType):
        return func.__code__.co_filename.startswith(_TORCH)
    return type(func).__module__.partition(".")[0] == "torch"


def _again(running: FrameType) -> FunctionType:
    """Return a function like the one that runs, whose arguments are those that it has now, unless others are given."""
    code, values = running.f_code, running.f_locals
    function = FunctionType(code, running.f_globals, code.co_name)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    function.__defaults__ = tuple(values.get(name) for name in names[: code.co_argcount])
    function.__kwdefaults__ = {name: values.get(name) for name in names[code.co_argcount :]}
    return function
