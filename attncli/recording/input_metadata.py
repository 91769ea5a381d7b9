"""What modules are called with that says which keys are padding, where queries stand, where documents begin.

An `nn.Embedding` with a `padding_idx`, or that of the words of a model whose configuration has a `pad_token_id`, says
which words of its input are none; so does the `attention_mask` or the `input_lengths` that a model is called with. An
input that is called after positions (`position_ids`, `pos`), or that of an
`nn.Embedding` that is (`position_embeddings`, `wpe`), says where queries stand; one that counts from 0 again and again
says that its row holds several documents. A model's configuration says how far its queries look back. And an attention
that is called with what an encoder gave attends to its words.
"""

from __future__ import annotations

import inspect
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from torch.nn import Embedding

from attncli.files import to_numpy
from attncli.recording.input_hint import Hints, InputHint
from attncli.recording.readers.reader import can_read_values

if TYPE_CHECKING:
    from types import FrameType

    from jaxtyping import Int

_MOST_TENSORS = 16  # that are recognized when they come again
_LONGEST = 1 << 16  # positions of a row whose length is told
_SPARE = 2  # vectors of a table of positions that stand for none of a row
_OF_CONFIGURATION = {"window": "sliding_window", "chunk": "attention_chunk_size"}
_ReadHints = Callable[["Int[np.ndarray, 'B T']"], Iterator["InputHint"]]
_SEQUENCE = r"((en|de)coder|src|source|tgt|target|memory|context|text|prompt|inputs?|x)"
_OF_PADDING = r"(attention|attn|(key_)?pad(ding)?|token|valid|word|hidden_states|embeds?)"
_MASK = re.compile(rf"({_SEQUENCE}_)?({_OF_PADDING}_)?mask")
_LENGTHS = re.compile(rf"(({_SEQUENCE}|seq|sequence|text|token|word)_?)?(lengths|lens)")


class InputReader:
    """Reads what the modules of a thread are called with."""

    def __init__(self, hints: Hints) -> None:
        self._hints = hints
        self._tables: WeakKeyDictionary[torch.nn.Module, _ReadHints] = WeakKeyDictionary()
        self._recent: deque[tuple[ref[torch.Tensor], int, _ReadHints, tuple[InputHint, ...]]] = deque(
            maxlen=_MOST_TENSORS
        )
        self._encoded: deque[tuple[ref[torch.Tensor], Int[np.ndarray, "B T"]]] = deque(maxlen=_MOST_TENSORS)
        self._masked: Callable[[], torch.nn.Module | None] = lambda: None  # the module that was told of padding last

    def enter(self, running: Sequence[torch.nn.Module], args: tuple[Any, ...], frame: FrameType) -> tuple[int, int]:
        """Read what the last module that runs is called with, and return what `leave` takes.

        Args:
            running: the modules that run, outermost first.
            args: its arguments by position.
            frame: what calls it. Torch hands keyword arguments to no hook of this kind; they stand there.
        """
        if len(running) == 1:
            self._hints.begin_forward()
        begun = self._hints.begin_module()
        module, config = running[-1], getattr(running[-1], "config", None)
        if config is not None and all(getattr(each, "config", None) is not config for each in running[:-1]):
            for kind, name in _OF_CONFIGURATION.items():
                if isinstance(number := getattr(config, name, None), int):
                    self._hints.add(_hint(kind, np.array([[number]]))._replace(size=0))
        forward = getattr(type(module), "forward", None)  # one of torch.jit has none
        is_table, names = forward is Embedding.forward, _arguments_of(forward)
        if (is_table or names is not None) and can_read_values():
            with torch._C.DisableTorchFunction():  # whole numbers, of which autograd records nothing
                if is_table and args:
                    if module not in self._tables:
                        self._tables[module] = _table_of(module, running)
                    self._read(args[0], self._tables[module])
                values = {name: args[place] for place, name in names or () if place < len(args)}
                values.update(frame.f_locals.get("kwargs", {}))
                self._read_arguments(values, running)
        return begun

    def _read_arguments(self, arguments: Mapping[str, Any], running: Sequence[torch.nn.Module]) -> None:
        """Read positions, and the padding that the outermost module is told of: what is inside may be made of it."""
        is_inside = any(each is self._masked() for each in running[:-1])
        for name, value in arguments.items():
            if "pos" in name:
                self._read(value, _positions)
            elif not is_inside and isinstance(value, torch.Tensor):
                if value.dim() == 2 and _MASK.fullmatch(name):
                    self._read(value, _mask_reader(name), _may_be_a_mask)
                elif value.dim() == 1 and _LENGTHS.fullmatch(name):
                    self._read(value, _lengths)
                else:
                    continue
                self._masked = ref(running[-1])

    def leave(self, begun: tuple[int, int], ran: tuple[Any, ...] | None) -> None:
        """Read what a module gave that ends.

        Args:
            begun: what `enter` returned.
            ran: its arguments, those by name, and its output; None of one that failed.
        """
        calls = self._hints.end_module(begun)
        if not calls or ran is None or not can_read_values():
            return
        args, kwargs, output = ran
        with torch._C.DisableTorchFunction():
            if calls == 1 and self._encoded:
                vectors = [one for one in (*args, *kwargs.values()) if _is_of_vectors(one)]
                for encoded, tokens in self._encoded:
                    times = sum(one is encoded() for one in vectors)
                    # Of queries, keys and values the last two are one, in whichever order they come.
                    if 0 < times < len(vectors) and (times > 1 or vectors[0] is not encoded()):
                        self._hints.add_to_last_call(_hint("encoded", tokens, is_sure=times > 1))
            real = self._hints.encoded_tokens()
            if real is not None:
                outputs = tuple(output.values()) if isinstance(output, Mapping) else output
                vectors = [
                    one for one in (outputs if isinstance(outputs, tuple) else (outputs,)) if _is_of_vectors(one)
                ]
                fits = [one for one in vectors if sorted(one.shape[:2]) == sorted(real.shape)]
                self._encoded += [(ref(one), real.astype(np.int64)) for one in fits[:1]]

    def _read(self, value: Any, read: _ReadHints, may_be_read: Callable[[Any], bool] | None = None) -> None:
        """Hand over what a tensor says; one that is known is not read again."""
        if type(value) is int:
            for hint in read(np.array([[value]])):
                self._hints.add(hint._replace(size=0))
        if not (may_be_read or _may_be_numbers)(value):
            return
        is_counted = not value.is_inference()
        hints: tuple[InputHint, ...] | None = None
        for recent, version, how, earlier in self._recent:
            if is_counted and version == value._version and how == read and recent() is value:
                hints = earlier
        if hints is None:
            hints = tuple(read(np.atleast_2d(to_numpy(value)).astype(np.int64)))
            if is_counted:
                self._recent.append((ref(value), value._version, read, hints))
        for hint in hints:
            self._hints.add(hint)


@cache
def _arguments_of(forward: Callable[..., Any] | None) -> tuple[tuple[int, str], ...] | None:
    """Return which arguments of a forward are called after positions or padding; None where none is or can be.

    Torch's own modules are told what the program made of padding.
    """
    names: list[inspect.Parameter] = []
    if (getattr(forward, "__module__", None) or "torch.").startswith("torch."):
        return None
    with suppress(TypeError, ValueError):
        _, *names = [] if forward is None else inspect.signature(forward).parameters.values()
    found = tuple(
        (index, one.name)
        for index, one in enumerate(names)
        if "pos" in one.name or _MASK.fullmatch(one.name) or _LENGTHS.fullmatch(one.name)
    )
    return found if found or any(one.kind is one.VAR_KEYWORD for one in names) else None


def _table_of(embedding: Any, running: Sequence[torch.nn.Module]) -> _ReadHints:
    """Return what reads the numbers that choose vectors of an embedding."""
    names = (name.rpartition(".")[2] for name, module in running[0].named_modules() if module is embedding)
    if any("pos" in name or name == "wpe" for name in names):
        return partial(_positions, size=embedding.num_embeddings)
    padding, ends, source = embedding.padding_idx, [None], "embedding"
    for each in reversed(running):  # the model whose embedding it is
        config, of_words = (getattr(each, name, None) for name in ("config", "get_input_embeddings"))
        own, words = getattr(config, "pad_token_id", None), None
        with suppress(Exception):  # the model's own method, which some have and do not implement
            words = of_words() if callable(of_words) else None
        if isinstance(own, int) and words is embedding:
            padding, source = own, "configuration" if padding is None else "both"
            ends = [getattr(config, name, None) for name in ("bos_token_id", "eos_token_id")]
            break
    return (lambda _: iter(())) if padding is None else partial(_tokens, padding, padding not in ends, source)


# --- what numbers say ---------------------------------------------------------------------------------------


def _hint(kind: Any, values: Int[np.ndarray, "B T"], is_sure: bool = True) -> InputHint:
    return InputHint(kind, values, values.shape[1], hash((kind, is_sure, values.shape, values.tobytes())), is_sure)


def _tokens(padding: int, is_padding_alone: bool, source: Any, ids: Int[np.ndarray, "B T"]) -> Iterator[InputHint]:
    """Yield which positions are words, where some at the ends of rows are none; within a row nothing is padding."""
    real = ids != padding
    from_left, from_right = (np.maximum.accumulate(each, axis=1) for each in (real, real[:, ::-1]))
    inside = from_left & from_right[:, ::-1]
    if ids.shape[1] < 2:
        return
    if inside.all():
        yield _hint("unpadded", inside.astype(np.int64))
        return
    is_at_one_end = bool(from_left.all() or from_right.all()) and np.array_equal(real, inside)
    is_sure = is_padding_alone and is_at_one_end and int((~real).sum(axis=1).max()) > 1
    yield _hint("tokens", inside.astype(np.int64), is_sure)._replace(source=source)


@cache
def _mask_reader(name: str) -> _ReadHints:
    return partial(_mask, name)


def _mask(name: str, values: Int[np.ndarray, "B T"]) -> Iterator[InputHint]:
    """Yield which positions a mask of that name says are words, if its rows have words, and these stand together.

    True is padding where the mask is called after it, as in torch; unless a row without words says that it is not.
    """
    for is_token in (values != 0, values == 0)[:: -1 if "pad" in name else 1]:
        edges = np.diff(is_token.astype(np.int8), axis=1, prepend=0, append=0)
        if ((edges == 1).sum(axis=1) == 1).all() and (is_token[:, 0] | is_token[:, -1]).all():
            yield _of_argument(name, is_token)
            return


def _lengths(values: Int[np.ndarray, "1 B"]) -> Iterator[InputHint]:
    """Yield which positions are words in rows of so many, with the padding at either end."""
    lengths, longest = values[0][:, None], int(values.max())
    if 0 < longest <= _LONGEST and values.min() > 0:
        at = np.arange(longest)
        yield _of_argument("lengths", at < lengths)
        if (lengths != longest).any():
            yield _of_argument("lengths", at >= longest - lengths)


def _of_argument(name: str, is_token: np.ndarray[Any, Any]) -> InputHint:
    return _hint("mask", is_token.astype(np.int64), is_sure=False)._replace(source=name)


def _positions(values: Int[np.ndarray, "B T"], size: int = 0) -> Iterator[InputHint]:
    """Yield where queries stand, and the documents that this says.

    Args:
        values: the positions.
        size: of the table whose vectors they choose; one that rows fill may count from the end of the rows.
    """
    yield _hint("positions", values, values.shape[1] + _SPARE < size)
    if (hint := documents(values)) is not None:
        yield hint


def documents(positions: Int[np.ndarray, "B T"]) -> InputHint | None:
    """Return the documents that positions count; None where no row has two of two positions or more."""
    is_start = positions == 0
    goes_on = positions[:, 1:] == positions[:, :-1] + 1
    if not is_start[:, 0].all() or not (goes_on | is_start[:, 1:]).all():
        return None
    values = is_start.cumsum(axis=1) - 1
    lengths = [np.bincount(own, minlength=values.shape[1]) for own in values]
    if max(int((each > 1).sum()) for each in lengths) < 2:
        return None
    alone = np.stack([each[own] < 2 for each, own in zip(lengths, values, strict=True)])
    return _hint("documents", np.where(alone, -1, values))  # a position by itself is padding


def _may_be_a_mask(value: Any) -> bool:
    """Return whether a matrix may say which positions of a batch are padding."""
    if type(value).__name__ != "Tensor" or value.is_meta or value.is_nested or value.is_complex() or not value.numel():
        return False
    return bool(((value == 0) | (value == 1)).all())


def _may_be_numbers(value: Any) -> bool:
    """Return whether a value may hold whole numbers of the positions of a batch."""
    if type(value).__name__ != "Tensor" or value.dim() not in (1, 2) or value.is_meta or value.is_nested:
        return False
    return not value.is_floating_point() and not value.is_complex() and value.element_size() >= 4 and value.numel() > 0


def _is_of_vectors(value: Any) -> bool:
    """Return whether a value may be the vectors of a batch of sequences."""
    return type(value).__name__ == "Tensor" and not value.is_nested and value.dim() == 3 and value.is_floating_point()
