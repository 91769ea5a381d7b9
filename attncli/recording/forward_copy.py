"""Copies of a module and its arguments before a forward, on which it runs again and changes nothing of the program's.

Parameters are shared. Objects that cannot be copied, as files and locks, are shared and named.
"""

from __future__ import annotations

import copy
import gc
import pickle
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from traceback import walk_tb
from types import CellType, FunctionType, MethodType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from attncli.errors import InputError

_MOST_SHARED = 256  # objects that cannot be copied
_COPIED = (dict, list, tuple, set, frozenset, nn.Module, MethodType, FunctionType)  # whatever they hold


class ForwardCopy:
    """A module and its arguments, by position and by name, as they are when this is made, and the random states."""

    def __init__(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        self.shared: list[str] = []  # attributes that hold something that cannot be copied
        self._names = {id(inside): name for name, inside in module.named_modules()}
        self._alive: list[Any] = []  # what `_memo` knows by its id
        self._memo: dict[int, Any] = {id(parameter): parameter for parameter in module.parameters()}
        for path, holder in module.named_modules():
            for name, value in vars(holder).items():
                if hasattr(type(value), "__del__"):  # a copy would end what it holds
                    self._share(value, f"{path}.{name}")
        args, kwargs = arguments
        # One tensor of ids may be two arguments, as ids and labels are: each is a copy of its own.
        arguments = tuple(map(_own_ids, args)), {name: _own_ids(value) for name, value in kwargs.items()}
        self._module, self.arguments = self._copied((module, arguments), {})
        for inside in self._module.modules():  # hooks of the program see its own forward alone
            for hooks in (inside._forward_pre_hooks, inside._forward_hooks):
                for key in [key for key, hook in hooks.items() if not _is_of_library(hook)]:
                    del hooks[key]
        self.random = RandomStates()

    @contextmanager
    def fresh(self, replaced: Mapping[int, torch.Tensor]) -> Iterator[tuple[nn.Module, tuple[Any, ...]]]:
        """Yield a module and arguments to run, some of them `replaced` by id, with the random states of then."""
        module, arguments = self._copied((self._module, self.arguments), replaced)
        # Hooks of a checkpoint around the program's forward count what it saves for its backward.
        with self.random.restored(), torch.autograd.graph.saved_tensors_hooks(_same, _same):
            yield module, arguments

    def _copied(self, value: Any, replaced: Mapping[int, torch.Tensor]) -> Any:
        """Return a deep copy in which what cannot be copied is shared."""
        copiers = copy._deepcopy_dispatch  # type: ignore[attr-defined]
        for _ in range(_MOST_SHARED):
            try:
                with patch.dict(copiers, {FunctionType: self._copy_function}):
                    return copy.deepcopy(value, {**self._memo, **replaced})
            except Exception as error:
                frames = (frame for frame, _ in walk_tb(error.__traceback__))
                copied = [frame.f_locals["x"] for frame in frames if frame.f_code is copy.deepcopy.__code__]
                if not copied:
                    raise
                self._share_one_of(copied)
        raise InputError(f"its forward is not proved, as more than {_MOST_SHARED} of its objects cannot be copied")

    def _copy_function(self, function: FunctionType, memo: dict[int, Any]) -> FunctionType:
        """Copy a function whose closure holds modules, as a forward that a program replaced; return any other one."""
        if not self._holds_modules(function):
            return function
        closure = tuple(CellType(copy.deepcopy(cell.cell_contents, memo)) for cell in function.__closure__ or ())
        code, name, defaults = function.__code__, function.__name__, function.__defaults__
        copied = FunctionType(code, function.__globals__, name, defaults, closure)
        copied.__kwdefaults__ = function.__kwdefaults__
        vars(copied).update(vars(function))
        return copied

    def _holds_modules(self, function: FunctionType, depth: int = 4) -> bool:
        for value in (cell.cell_contents for cell in function.__closure__ or ()):
            is_inside = isinstance(value, FunctionType) and depth > 0 and self._holds_modules(value, depth - 1)
            if is_inside or id(getattr(value, "__self__", value)) in self._names:
                return True
        return False

    def _share_one_of(self, copied: list[Any]) -> None:
        """Share the outermost object of Python's library, or else the last, of objects that each hold the next."""
        last = copied[-1]
        if isinstance(last, torch.Tensor):  # of a graph, which torch does not copy
            self._alive.append(last)
            self._memo[id(last)] = last.detach().clone().requires_grad_(last.requires_grad)
            return
        holder = next((value for value in reversed(copied) if isinstance(value, nn.Module)), None)
        values, ids = {} if holder is None else vars(holder), set(map(id, copied))
        name = next((name for name, value in values.items() if id(value) in ids), "its arguments")
        path = self._names.get(id(holder), "")
        self._share(next((value for value in copied if _is_of_python(value)), last), f"{path}.{name}")

    def _share(self, value: Any, name: str) -> None:
        self._alive.append(value)
        self._memo[id(value)] = value
        self.shared.append(name.lstrip("."))


def _own_ids(value: Any) -> Any:
    is_ids = isinstance(value, torch.Tensor) and not value.is_floating_point()
    return value.detach().clone() if is_ids else value


def _is_of_library(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith(("torch.", "transformers."))


def _is_of_python(value: Any) -> bool:
    library = type(value).__module__.partition(".")[0]
    return library in sys.stdlib_module_names and library != "collections" and not isinstance(value, _COPIED)


def _same(saved: torch.Tensor) -> torch.Tensor:
    return saved


class RandomStates:
    """States of the generators of torch, NumPy and Python, wherever a program holds them."""

    def __init__(self) -> None:
        self._states: dict[int, tuple[Any, Any]] = {}
        devices = torch.cuda.default_generators if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
        shared: list[Any] = [torch.default_generator, random._inst, np.random.mtrand._rand]  # maybe frozen
        for generator in (*shared, *devices, *gc.get_objects()):
            if type(generator) in _GENERATORS:
                self.add(generator)

    def add(self, generator: Any) -> None:
        """Save the state of a generator, unless it is known."""
        self._states.setdefault(id(generator), (generator, _state(generator)))

    @property
    def are_changed(self) -> bool:
        """Whether random numbers were drawn since."""
        return any(pickle.dumps(_state(generator)) != pickle.dumps(state) for generator, state in self._states.values())

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Put all generators into these states, and back afterwards."""
        now = [(generator, _state(generator)) for generator, _ in self._states.values()]
        _put(self._states.values())
        try:
            yield
        finally:
            _put(now)


def _state(generator: Any) -> Any:
    return _GENERATORS[type(generator)][0](generator)


def _put(states: Iterable[tuple[Any, Any]]) -> None:
    for generator, state in states:
        _GENERATORS[type(generator)][1](generator, state)


_GENERATORS: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], object]]] = {  # how to get and set a state
    torch.Generator: (lambda rng: rng.get_state().numpy(), lambda rng, state: rng.set_state(torch.from_numpy(state))),
    random.Random: (random.Random.getstate, random.Random.setstate),
    np.random.RandomState: (lambda rng: rng.get_state(legacy=False), lambda rng, state: rng.set_state(state)),
    np.random.Generator: (
        lambda rng: rng.bit_generator.state,
        lambda rng, state: setattr(rng.bit_generator, "state", state),
    ),
}
