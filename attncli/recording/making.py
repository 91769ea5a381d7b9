"""Where a program made its masks: the line that gave a tensor the values that hide keys.

Comparisons, logic, `tril`, `masked_fill` and the like make a mask; what only copies it or computes numbers of it goes
on with it. A mask is known by its storage, so that views of it are known too, and only as long as nothing else has
changed it; it is not kept alive.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

from attncli.recording.call import AttentionCall, MaskArgument
from attncli.recording.call_site import line_of
from attncli.recording.readers.origins import has_values, version

_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
_LOGIC = ("and", "or", "xor")
# What makes a mask of whatever it is given, and of another mask a new one; or a mask of numbers.
_FILLED = ("ones", "ones_like", "zeros", "zeros_like", "full")
_ANEW = ("tril", "triu", "__setitem__", *_FILLED)
_MAKE = (
    *_COMPARED, *(f"__{name}__" for name in _COMPARED), *(f"logical_{name}" for name in (*_LOGIC, "not")),
    *(f"bitwise_{name}" for name in (*_LOGIC, "not")), *(f"__{i}{name}__" for i in ("", "i", "r") for name in _LOGIC),
    "isin", "__invert__", "masked_fill", "where", *_ANEW,
)  # fmt: skip
# What makes a mask of one alone: copies, parts, more of it, and its numbers.
_JOIN = ("cat", "concat", "stack")
_PART = ("__getitem__", "index_select")
_GO_ON = (
    "to", "type_as", "bool", "int", "long", "float", "half", "bfloat16", "double", "cpu", "cuda", "clone", "contiguous",
    "__deepcopy__", "reshape", "flatten", "repeat", "repeat_interleave", "tile", "pad", "sub", "__sub__", "__rsub__",
    "rsub", "mul", "__mul__", "__rmul__", "add", "__add__", "__radd__", "neg", "__neg__", "log", *_PART, *_JOIN,
)  # fmt: skip
_address: Callable[[torch.Tensor], int] = torch._C._storage_address  # type: ignore[attr-defined]
_HOMES = (torch.Tensor, torch, functional)
_LARGE = -1000.0  # a number that makes a mask of what it multiplies
_LEAST_ROOM = 16  # what has ended is forgotten before more are known: its small remains keep the heap from shrinking
_MOST_MASKS = 4096  # that are known at a time


class _Made(NamedTuple):
    """A mask.

    Attributes:
        storage: its storage, weakly.
        version: of it then.
        line: that made it.
    """

    storage: StorageWeakRef
    version: int
    line: str


class Making:
    """The masks that a program made while it was watched, in all of its threads.

    Args:
        start: the working directory that files below it are named from.

    Attributes:
        functions: the names of the functions that make masks.
    """

    def __init__(self, start: str) -> None:
        self._start = start
        self._known: dict[int, _Made] = {}
        self._room = _LEAST_ROOM
        self.functions = {each: name for name in _MAKE for each in _spelled(name, f"{name}_")}
        self._makers = frozenset(self.functions)
        self.functions |= {each: name for name in _GO_ON for each in _spelled(name)}

    def wants(self, func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
        """Return whether one of the functions may have made a mask: many do of a mask alone, or by a large number."""
        if func in self._makers:
            return True
        some = args[0] if args and isinstance(args[0], tuple | list) else args
        if not some:
            return False
        last = some[-1]
        if type(last) in (int, float) and last <= _LARGE:
            return True
        return bool(self._known) and (self._of(some[0]) is not None or (len(some) > 1 and self._of(last) is not None))

    def take(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Take in a function that ran."""
        name = self.functions[func]
        mask = args[0] if name == "__setitem__" else result
        if not has_values(mask) or mask.requires_grad:
            return
        given = args[0] if args and isinstance(args[0], tuple | list) else (*args, *kwargs.values())
        tensors = [one for one in given if isinstance(one, torch.Tensor)][: 1 if name in _PART else None]
        if not _is_mask(name, mask, tensors):
            return
        tensors = tensors[1:] if name == "masked_fill" else tensors  # what fills another tensor is what that becomes
        line = None
        if len(tensors) == 1 and name not in _ANEW:
            line = self._line_of(tensors[0], tensors[0] is result)
        if line is None:
            line = line_of(sys._getframe(1), self._start)
        self._put(mask, line)

    def _put(self, mask: torch.Tensor, line: str | None) -> None:
        key = _address(mask)
        if line is None:
            self._known.pop(key, None)
            return
        if len(self._known) >= self._room:
            alive = [(key, one) for key, one in [*self._known.items()] if not _is_gone(one)]
            self._known = dict(alive[-_MOST_MASKS // 2 :])
            self._room = max(_LEAST_ROOM, 2 * len(self._known))
        storage = StorageWeakRef(mask.untyped_storage())  # type: ignore[no-untyped-call]
        self._known[key] = _Made(storage, version(mask), line)

    def _line_of(self, mask: torch.Tensor, is_changed: bool = False) -> str | None:
        """Return the line that made a mask; None where others may have changed it since, but for what just did."""
        made = self._of(mask)
        return None if made is None or version(mask) > made.version + is_changed else made.line

    def _of(self, tensor: Any) -> _Made | None:
        """Return what is known of the storage of a tensor."""
        if not isinstance(tensor, torch.Tensor) or not torch._C._has_storage(tensor):
            return None
        made = self._known.get(_address(tensor))
        return None if made is None or _is_gone(made) else made

    def named(self, call: AttentionCall) -> AttentionCall:
        """Return a call, while the program waits, whose masks say where they were made, if not at its own line."""

        def named(given: MaskArgument) -> MaskArgument:
            line = self._line_of(given.values if given.source_tensor is None else given.source_tensor)
            return given if line in (None, str(call.place)) else given._replace(made_at=line)

        masks, ignored = tuple(map(named, call.masks)), tuple(map(named, call.ignored_masks))
        has_lines = any(one.made_at for one in (*masks, *ignored))
        return replace(call, masks=masks, ignored_masks=ignored) if has_lines else call


def _is_gone(made: _Made) -> bool:
    return bool(made.storage.expired())  # type: ignore[no-untyped-call]


def _is_mask(name: str, mask: torch.Tensor, tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether what a function made of tensors may be a mask, and not words of which some are padding."""
    if mask.dtype == torch.bool:
        return True
    if name == "__setitem__":  # also what a cache is written by
        return mask.is_floating_point() and len(tensors) == 1
    if name in ("masked_fill", "where"):
        return mask.is_floating_point() and mask.ndim > 1
    if name in _FILLED:
        return False
    return len(tensors) == 1 or mask.is_floating_point() or name in _JOIN


def _spelled(*names: str) -> Iterator[Callable[..., Any]]:
    """Yield the functions of torch that have these names."""
    for home in _HOMES:
        for each in names:
            if callable(function := getattr(home, each, None)):
                yield function
