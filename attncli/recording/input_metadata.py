"""What modules are given that says which keys are padding, where queries stand, where documents begin, whose keys come.

An `nn.Embedding` with a `padding_idx`, or that of the words of a model whose configuration has a `pad_token_id`, says
which words of its input are none. An input that is called after positions (`position_ids`, `pos`), or that of an
`nn.Embedding` that is (`position_embeddings`, `wpe`), says where queries stand; one that counts from 0 again and again
says that its row holds several documents. And an attention that is given what an encoder gave attends to its words.
"""

from __future__ import annotations

import inspect
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from torch.nn import Embedding

from attncli.files import to_numpy
from attncli.recording.input_hint import HintListener, InputHint
from attncli.recording.readers.reader import may_look

if TYPE_CHECKING:
    from types import FrameType

    from jaxtyping import Int

_MOST_KNOWN = 16  # tensors that are known again
_SPARE = 2  # vectors of a table of positions that stand for none of a row
_Says = Callable[["Int[np.ndarray, 'B T']"], Iterator["InputHint"]]


class Inputs(threading.local):
    """The modules that run in a thread, and what they are given: it is told to a listener."""

    def __init__(self, listener: HintListener) -> None:
        self._listener = listener
        self._running: list[tuple[torch.nn.Module, tuple[int, int]]] = []
        self._tables: WeakKeyDictionary[torch.nn.Module, _Says] = WeakKeyDictionary()
        self._known: deque[tuple[ref[torch.Tensor], int, _Says, tuple[InputHint, ...]]] = deque(maxlen=_MOST_KNOWN)
        self._encoded: deque[tuple[ref[torch.Tensor], Int[np.ndarray, "B T"]]] = deque(maxlen=_MOST_KNOWN)

    def enter(self, module: torch.nn.Module, args: tuple[Any, ...], frame: FrameType) -> None:
        """Begin with a module.

        Args:
            module: it.
            args: what it is given by position.
            frame: what calls it. Torch hands keyword arguments to no hook of this kind; they stand there.
        """
        self._running.append((module, self._listener.begins()))
        takes = _takes(getattr(type(module), "forward", None))
        if takes.says_something and may_look():
            kwargs = frame.f_locals.get("kwargs", {})
            with torch._C.DisableTorchFunction():  # whole numbers, of which autograd records nothing
                self._read(takes, module, args, kwargs)

    def leave(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, output: Any) -> None:
        """End with the last module that began; of one that failed there are no `kwargs`, and no output."""
        calls = self._listener.ends(self._running.pop()[1]) if self._running else 0
        if calls and kwargs is not None and may_look():
            with torch._C.DisableTorchFunction():
                self._attended(calls, args, kwargs, output)

    def _read(self, takes: _Takes, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Tell what a module that begins is given."""
        if takes.is_table and args:
            if module not in self._tables:
                self._tables[module] = _says_of(module, [each for each, _ in self._running])
            self._tell(args[0], self._tables[module])
        given = [args[place] for place in takes.positions if place < len(args)]
        for value in [*given, *(value for name, value in kwargs.items() if "pos" in name)]:
            self._tell(value, _positions)

    def _attended(self, calls: int, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        """Tell whose output an attention was given, and remember what an encoder gave.

        Args:
            calls: how many the module made that ended.
            args: its arguments.
            kwargs: those by name.
            output: what it gave.
        """
        if calls == 1 and self._encoded:
            vectors = [one for one in (*args, *kwargs.values()) if _is_of_vectors(one)]
            for known, tokens in self._encoded:
                times = sum(one is known() for one in vectors)
                # Of queries, keys and values the last two are one, in whichever order they come.
                if 0 < times < len(vectors) and (times > 1 or vectors[0] is not known()):
                    self._listener.attends_to(_told("encoded", tokens, is_sure=times > 1))
        real = self._listener.encoded()
        if real is not None:
            fits = [one for one in _vectors_of(output) if sorted(one.shape[:2]) == sorted(real.shape)]
            self._encoded += [(ref(one), real.astype(np.int64)) for one in fits[:1]]

    def _tell(self, value: Any, says: _Says) -> None:
        """Tell what a tensor says; one that is known is not read again."""
        if isinstance(value, bool) or not (isinstance(value, int) or _may_be_numbers(value)):
            return
        is_counted = not isinstance(value, int) and not value.is_inference()
        told = self._of_known(value, says) if is_counted else None
        if told is None:
            numbers = np.array([[value]]) if isinstance(value, int) else np.atleast_2d(to_numpy(value))
            told = tuple(says(numbers.astype(np.int64)))
            told = tuple(one._replace(size=0) for one in told) if isinstance(value, int) else told
            if is_counted:
                self._known.append((ref(value), value._version, says, told))
        for one in told:
            self._listener.tell(one)

    def _of_known(self, value: torch.Tensor, says: _Says) -> tuple[InputHint, ...] | None:
        for known, version, how, told in self._known:
            if known() is value and version == value._version and how == says:
                return told
        return None


class _Takes(NamedTuple):
    """What modules with a forward are given.

    Attributes:
        is_table: whether it is an embedding, which is given numbers of its vectors.
        positions: which of its arguments are called after positions.
        says_something: whether it is given anything by which something could be said.
    """

    is_table: bool
    positions: tuple[int, ...]
    says_something: bool


@cache
def _takes(forward: Callable[..., Any] | None) -> _Takes:
    """Return what modules with a forward are given; one of torch.jit has none."""
    names: list[inspect.Parameter] = []
    with suppress(TypeError, ValueError):
        _, *names = [] if forward is None else inspect.signature(forward).parameters.values()
    positions = tuple(index for index, one in enumerate(names) if "pos" in one.name)
    is_open = any(one.kind is one.VAR_KEYWORD for one in names)
    is_table = forward is Embedding.forward
    return _Takes(is_table, positions, bool(positions) or is_open or is_table)


def _says_of(embedding: Any, running: list[torch.nn.Module]) -> _Says:
    """Return what the numbers say that choose vectors of an embedding."""
    model = running[0]
    names = (name.rpartition(".")[2] for name, module in model.named_modules() if module is embedding)
    if any("pos" in name or name == "wpe" for name in names):
        return partial(_learned_positions, embedding.num_embeddings)
    padding, ends, who = embedding.padding_idx, [None], "embedding"
    for each in reversed(running):  # the model whose embedding it is
        config, of_words = (getattr(each, name, None) for name in ("config", "get_input_embeddings"))
        own = getattr(config, "pad_token_id", None)
        if isinstance(own, int) and callable(of_words) and of_words() is embedding:
            padding, who = own, "configuration" if padding is None else "both"
            ends = [getattr(config, name, None) for name in ("bos_token_id", "eos_token_id")]
            break
    return _nothing if padding is None else partial(_tokens, padding, padding not in ends, who)


# --- what numbers say ---------------------------------------------------------------------------------------


def _told(kind: Any, values: Int[np.ndarray, "B T"], is_sure: bool = True) -> InputHint:
    return InputHint(kind, values, values.shape[1], hash((kind, is_sure, values.shape, values.tobytes())), is_sure)


def _nothing(_: Int[np.ndarray, "B T"]) -> Iterator[InputHint]:
    return iter(())


def _tokens(padding: int, is_padding_alone: bool, who: Any, ids: Int[np.ndarray, "B T"]) -> Iterator[InputHint]:
    """Yield which positions are words, where some at the ends of rows are none; within a row nothing is padding."""
    real = ids != padding
    from_left, from_right = (np.maximum.accumulate(each, axis=1) for each in (real, real[:, ::-1]))
    inside = from_left & from_right[:, ::-1]
    if ids.shape[1] < 2:
        return
    if inside.all():
        yield _told("unpadded", inside.astype(np.int64))
        return
    is_at_one_end = bool(from_left.all() or from_right.all()) and np.array_equal(real, inside)
    is_sure = is_padding_alone and is_at_one_end and int((~real).sum(axis=1).max()) > 1
    yield _told("tokens", inside.astype(np.int64), is_sure)._replace(who=who)


def _positions(values: Int[np.ndarray, "B T"]) -> Iterator[InputHint]:
    """Yield where queries stand, and the documents that this says."""
    yield _told("positions", values, False)
    if (told := documents(values)) is not None:
        yield told


def _learned_positions(size: int, values: Int[np.ndarray, "B T"]) -> Iterator[InputHint]:
    """Yield positions that choose vectors of a table; in one that rows fill they may count from the end of the rows."""
    yield _told("positions", values, values.shape[1] + _SPARE < size)
    if (told := documents(values)) is not None:
        yield told


def documents(positions: Int[np.ndarray, "B T"]) -> InputHint | None:
    """Return the documents that positions count; None where no row has two of two positions or more."""
    if positions.shape[1] < 4:
        return None
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
    return _told("documents", values) if several else None


# --- which tensors ------------------------------------------------------------------------------------------


def _may_be_numbers(value: Any) -> bool:
    """Return whether a value may hold whole numbers of the positions of a batch."""
    if type(value).__name__ != "Tensor" or value.dim() not in (1, 2) or value.is_meta or value.is_nested:
        return False
    return not value.is_floating_point() and not value.is_complex() and value.element_size() >= 4 and value.numel() > 0


def _is_of_vectors(value: Any) -> bool:
    """Return whether a value may be the vectors of a batch of sequences."""
    return type(value).__name__ == "Tensor" and not value.is_nested and value.dim() == 3 and value.is_floating_point()


def _vectors_of(output: Any) -> list[torch.Tensor]:
    """Return the vectors among what a module gave."""
    several = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple) else (output,)
    return [one for one in several if _is_of_vectors(one)]
