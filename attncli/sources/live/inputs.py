"""What modules are given that says which keys are padding and where documents begin: numbers of words, and positions.

An `nn.Embedding` with a `padding_idx` says which words of its input are none. An input that is called after positions
(`position_ids`, `pos`), or that of an `nn.Embedding` that is (`position_embeddings`, `wpe`), and that counts from 0
again and again says that its row holds several documents.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from attncli.files import to_numpy

if TYPE_CHECKING:
    import torch
    from jaxtyping import Bool, Int


class Told(NamedTuple):
    """What an input of a module says of the positions of a batch.

    Attributes:
        kind: `tokens` or `documents`.
        values: of tokens, 1 where a position is one and 0 where it is padding; of documents, the number of the document
            of each position, −1 where it is in none.
        size: how many positions a row has.
        digest: what tells it from others.
    """

    kind: Literal["tokens", "documents"]
    values: Int[np.ndarray, "B T"]
    size: int
    digest: int


@contextmanager
def watching_inputs(tell: Callable[[Told, int], None], taken: Callable[[], int]) -> Iterator[None]:
    """Tell what modules that run inside are given.

    Args:
        tell: takes what an input says, and what `taken` returned when the module that it was given to began.
        taken: how many calls this thread has made so far.
    """
    import torch

    from attncli.sources.live import transforms
    from attncli.sources.live.hooks import on_every_module
    from attncli.sources.live.reader import may_look

    local = threading.local()
    of_positions: WeakKeyDictionary[torch.nn.Module, bool] = WeakKeyDictionary()
    faults: list[Exception] = []

    def enter(module: torch.nn.Module, *_: Any) -> None:
        if not hasattr(local, "begun"):
            local.begun = []
        if isinstance(module, torch.nn.Embedding) and module not in of_positions:
            outermost = local.begun[0][0] if local.begun else module
            of_positions[module] = _is_of_positions(outermost, module)
        local.begun.append((module, taken()))

    def leave(module: torch.nn.Module, args: Any, *rest: Any) -> None:
        begun = getattr(local, "begun", [])
        since = begun.pop()[1] if begun else taken()
        kwargs = rest[0] if len(rest) == 2 else {}
        if transforms.are_running() or not may_look():
            return
        try:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                for one in _told(module, args, kwargs, of_positions.get(module, False)):
                    tell(one, since)
        except RecursionError:  # the program left us too few frames, and `watching` says so
            return
        except Exception as fault:  # the program goes on, and it is raised at the end
            faults.append(fault)

    remove_hooks = on_every_module(enter, leave)
    try:
        yield
    finally:
        remove_hooks()
    if faults:
        raise faults[0]


def _is_of_positions(model: torch.nn.Module, embedding: torch.nn.Module) -> bool:
    """Return whether an embedding has the name of one of positions in its model."""
    names = (name.rpartition(".")[2] for name, module in model.named_modules() if module is embedding)
    return any("pos" in name or name == "wpe" for name in names)


def _told(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], is_of_positions: bool
) -> Iterator[Told]:
    padding = getattr(module, "padding_idx", None)
    if isinstance(padding, int) and args and (ids := _numbers(args[0])) is not None:
        told = _tokens(ids != padding)
        if told is not None:
            yield told
    places = _position_arguments(getattr(type(module), "forward", None))  # a module of torch.jit has none
    given = [args[place] for place in places if place < len(args)] + [*args[:1]] * is_of_positions
    for value in [*given, *(value for name, value in kwargs.items() if "pos" in name)]:
        if (positions := _numbers(value)) is not None and (told := documents(positions)) is not None:
            yield told


@cache
def _position_arguments(forward: Callable[..., Any] | None) -> tuple[int, ...]:
    """Return which arguments of a module are called after positions."""
    try:
        _, *names = inspect.signature(forward).parameters if forward is not None else ("self",)
    except (TypeError, ValueError):
        return ()
    return tuple(index for index, name in enumerate(names) if "pos" in name)


def _numbers(value: Any) -> Int[np.ndarray, "B T"] | None:
    """Return whole numbers of the positions of a batch; None for everything else."""
    if type(value).__name__ != "Tensor" or value.dim() not in (1, 2) or value.is_meta or value.is_nested:
        return None
    if value.is_floating_point() or value.is_complex() or value.element_size() < 4 or value.shape[-1] < 2:
        return None
    return np.atleast_2d(to_numpy(value)).astype(np.int64)


def _tokens(real: Bool[np.ndarray, "B T"]) -> Told | None:
    """Return which positions are words, where some at the ends of rows are none; within a row nothing is padding."""
    inside = np.maximum.accumulate(real, axis=1) & np.maximum.accumulate(real[:, ::-1], axis=1)[:, ::-1]
    if inside.all():
        return None
    return Told("tokens", inside.astype(np.int64), inside.shape[1], hash(inside.tobytes()))


def documents(positions: Int[np.ndarray, "B T"]) -> Told | None:
    """Return the documents that positions count; None where no row has two of two positions or more."""
    is_start = positions == 0
    goes_on = positions[:, 1:] == positions[:, :-1] + 1
    if not is_start[:, 0].all() or not (goes_on | is_start[:, 1:]).all():
        return None
    number = is_start.cumsum(axis=1) - 1
    values = number.copy()
    several = False
    for row, own in enumerate(number):
        lengths = np.bincount(own)
        values[row] = np.where(lengths[own] > 1, own, -1)  # a position by itself is padding
        several |= int((lengths > 1).sum()) > 1
    return Told("documents", values, positions.shape[1], hash(values.tobytes())) if several else None
