"""What a forward may change, as it was before: arguments, attributes of modules and random numbers.

Modules and parameters stay the program's own. Inside `restored` their attributes are copies, so that a forward that
runs again writes to none of the program's objects, whichever way it reaches its modules.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy, deepcopy
from traceback import walk_tb
from typing import Any

import numpy as np
import torch
from torch import nn

_OF_MODULES = ("_parameters", "_modules")  # a forward may add to them, and changes no entry
_MOST_SHARED = 256  # objects that cannot be copied
_BUILT_IN = (dict, list, tuple, set, frozenset, nn.Module)  # copied, whatever they hold
_Replaced = Mapping[int, torch.Tensor]  # by the id of a tensor among the arguments


class SavedState:
    """What a forward may change, as it is when this is made.

    Args:
        module: that is about to run.
        arguments: its arguments, those by position and those by name.

    Attributes:
        arguments: copies of them.
        shared: the attributes that hold something that cannot be copied, which forwards that run again share.
    """

    def __init__(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        self._module = module
        self._iterators: dict[str, Any] = {}
        self._alive: list[Any] = []  # what `_memo` knows by its id
        self._memo: dict[int, Any] = {id(one): one for one in (*module.modules(), *module.parameters())}
        self.shared: list[str] = []
        args, kwargs = arguments
        # One tensor of ids may be two arguments, as ids and labels are: each is a copy of its own.
        args, kwargs = tuple(map(_own_ids, args)), {name: _own_ids(one) for name, one in kwargs.items()}
        attributes: dict[tuple[str, str], Any] = {}
        for path, each in module.named_modules():
            for name, value in each.__dict__.items():
                is_shallow = name in _OF_MODULES or "_hooks" in name
                attributes[path, name] = copy(value) if is_shallow else value
                if is_shallow:
                    self._share(attributes[path, name])
                elif name == "config":
                    self._share(value)
                elif hasattr(type(value), "__next__"):
                    self._share(value)
                    self._iterators[f"{path}.{name}".lstrip(".")] = value
                elif hasattr(type(value), "__del__"):  # a copy would end what it holds
                    self._share(value)
                    self.shared.append(f"{path}.{name}".lstrip("."))
        self._modules = dict(module.named_modules())
        self.arguments, self._attributes = self._cloned(((args, kwargs), attributes), {})
        self._random = _RandomStates()
        self._generators: dict[int, tuple[torch.Generator, torch.Tensor]] = {}

    def saw_generator(self, generator: torch.Generator) -> None:
        """Save the state of a generator that is about to draw, the first time."""
        self._generators.setdefault(id(generator), (generator, generator.get_state()))

    @property
    def draws(self) -> bool:
        """Whether random numbers were drawn since."""
        return bool(self._generators) or not self._random.equals(self._random.now())

    def end(self, dropped: set[int]) -> None:
        """End with the program's own forward: iterators go on from here, in one copy that all forwards go through.

        Args:
            dropped: keys of hooks, which are left out of what is restored.
        """
        for name, iterator in self._iterators.items():
            try:
                self._memo[id(iterator)] = deepcopy(iterator)
            except Exception:
                self.shared.append(name)
        for (path, name), hooks in self._attributes.items():
            if name in ("_forward_pre_hooks", "_forward_hooks"):
                current = self._modules[path].__dict__[name]
                for key in [key for key in hooks if key in dropped or key not in current]:
                    del hooks[key]

    @contextmanager
    def restored(self, replaced: _Replaced) -> Iterator[tuple[Any, ...]]:
        """Have everything be as it was, and yield the arguments; afterwards it is the program's own again.

        Args:
            replaced: tensors that take the place of some of the arguments.
        """
        arguments, attributes = self._cloned((self.arguments, self._attributes), replaced)
        own = {each: dict(each.__dict__) for each in self._module.modules()}
        own_random = self._random.now()
        own_generators = {id(one): one.get_state() for one, _ in self._generators.values()}
        before: dict[str, dict[str, Any]] = {}
        for (path, name), value in attributes.items():
            before.setdefault(path, {})[name] = copy(value) if name in _OF_MODULES or "_hooks" in name else value
        try:
            for path, each in self._modules.items():
                each.__dict__.clear()
                each.__dict__.update(before[path])
            self._random.set()
            for generator, state in self._generators.values():
                generator.set_state(state)
            # Hooks of a checkpoint around the program's forward count what it saves for its backward.
            with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda saved: saved):
                yield arguments
        finally:
            for each, values in own.items():
                each.__dict__.clear()
                each.__dict__.update(values)
            own_random.set()
            for generator, state in self._generators.values():
                generator.set_state(own_generators.get(id(generator), state))

    def _share(self, value: Any, instead: Any = None) -> None:
        self._alive.append(value)
        self._memo[id(value)] = value if instead is None else instead

    def _cloned(self, value: Any, replaced: _Replaced) -> Any:
        """Return a deep copy in which what cannot be copied is shared."""
        for _ in range(_MOST_SHARED):
            try:
                return deepcopy(value, {**self._memo, **replaced})
            except Exception as error:
                copied = [frame.f_locals["x"] for frame, _ in walk_tb(error.__traceback__) if _is_deepcopy(frame)]
                if not copied:
                    raise
                self._share_one_of(copied)
        raise RecursionError(f"more than {_MOST_SHARED} objects of {type(self._module).__name__} cannot be copied")

    def _share_one_of(self, copied: list[Any]) -> None:
        """Share the object whose copy failed: the outermost that Python's library made, or else the innermost.

        Args:
            copied: what was being copied, each of which holds the next.
        """
        last = copied[-1]
        if isinstance(last, torch.Tensor):  # of a graph, which torch does not copy
            self._share(last, last.detach().clone().requires_grad_(last.requires_grad))
            return
        self._share(next((one for one in copied if _is_of_python(one)), last))
        paths = next((one for one in copied if isinstance(one, dict) and next(iter(one), None).__class__ is tuple), {})
        names = (path for path, value in paths.items() if any(value is one for one in copied))
        self.shared.append(".".join(filter(None, next(names, ("", "its arguments")))))


def _own_ids(value: Any) -> Any:
    is_ids = isinstance(value, torch.Tensor) and not value.is_floating_point()
    return value.detach().clone() if is_ids else value


def _is_deepcopy(frame: Any) -> bool:
    return frame.f_code is deepcopy.__code__


def _is_of_python(value: Any) -> bool:
    library = type(value).__module__.partition(".")[0]
    return library in sys.stdlib_module_names and library != "collections" and not isinstance(value, _BUILT_IN)


class _RandomStates:
    """The states of torch's generators, and of all that Python and NumPy have.

    Args:
        generators: of Python and NumPy; None is all that there are.
    """

    def __init__(self, generators: list[Any] | None = None) -> None:
        self._torch = [torch.get_rng_state()]
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self._torch += torch.cuda.get_rng_state_all()
        objects = gc.get_objects() if generators is None else generators
        self.generators = [each for each in objects if type(each) in _GENERATORS]
        self._states = [_GENERATORS[type(each)][0](each) for each in self.generators]

    def set(self) -> None:
        """Have all generators be in these states."""
        cpu, *cuda = self._torch
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
        for each, state in zip(self.generators, self._states, strict=True):
            _GENERATORS[type(each)][1](each, state)

    def now(self) -> _RandomStates:
        """Return the states that the same generators have now."""
        return _RandomStates(self.generators)

    def equals(self, other: _RandomStates) -> bool:
        """Return whether the states are those of the same generators at another time."""
        return all(map(torch.equal, self._torch, other._torch)) and _equal(self._states, other._states)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return all(map(_equal, one, other))
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)


def _set_bits(generator: np.random.Generator, state: Any) -> None:
    generator.bit_generator.state = state


_GENERATORS: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], None]]] = {
    random.Random: (random.Random.getstate, random.Random.setstate),
    np.random.RandomState: (lambda one: one.get_state(legacy=False), lambda one, state: one.set_state(state)),
    np.random.Generator: (lambda one: one.bit_generator.state, _set_bits),
}
