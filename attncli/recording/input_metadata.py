"""Hints from the inputs of modules: which keys are padding, where queries are, where documents begin.

An `nn.Embedding` with a `padding_idx`, or that of the words of a model with a `pad_token_id`, shows which words of its
input are none; so does the `attention_mask` or the `input_lengths` of a model. Positions are an input with such a name,
or that of an `nn.Embedding`; where they count from 0 again and again, a row holds several documents. An attention that
is called with the output of an encoder attends to its words.
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
from attncli.recording.input_hint import Hints, InputHint, Kind
from attncli.recording.readers.reader import can_read_values

if TYPE_CHECKING:
    from types import FrameType

    from jaxtyping import Bool, Int

_MOST_TENSORS = 16  # that are recognized when they come again
_LONGEST = 1 << 16  # positions of a row whose length is given
_SPARE = 2  # vectors of a table of positions that stand for none of a row
_OF_CONFIGURATION: Mapping[Kind, str] = {"window": "sliding_window", "chunk": "attention_chunk_size"}
_ReadHints = Callable[["Int[np.ndarray, 'B T']"], Iterator["InputHint"]]
_SEQUENCE = r"((en|de)coder|src|source|tgt|target|memory|context|text|prompt|inputs?|x)"
_OF_PADDING = r"(attention|attn|(key_)?pad(ding)?|token|valid|word|hidden_states|embeds?)"
# The names of arguments that are read.
_POSITIONS = re.compile(".*pos.*")
_MASK = re.compile(rf"({_SEQUENCE}_)?({_OF_PADDING}_)?mask")
_LENGTHS = re.compile(rf"(({_SEQUENCE}|seq|sequence|text|token|word)_?)?(lengths|lens)")


class InputReader:
    """Reads the inputs of the modules of a thread."""

    def __init__(self, hints: Hints) -> None:
        self._hints = hints
        self._tables: WeakKeyDictionary[torch.nn.Module, _ReadHints] = WeakKeyDictionary()
        self._recent = deque[tuple[ref[torch.Tensor], Any, _ReadHints, tuple[InputHint, ...]]](maxlen=_MOST_TENSORS)
        self._encoded = deque[tuple[ref[torch.Tensor], Any]](maxlen=_MOST_TENSORS)
        self._masked: Callable[[], torch.nn.Module | None] = lambda: None  # the last module with an argument of padding

    def enter(self, running: Sequence[torch.nn.Module], args: tuple[Any, ...], frame: FrameType) -> tuple[int, int]:
        """Read the inputs of the last module that runs, and return what `leave` takes."""
        begun = self._hints.begin_module(len(running) == 1)
        module, config = running[-1], getattr(running[-1], "config", None)
        if config is not None and all(getattr(each, "config", None) is not config for each in running[:-1]):
            for kind, name in _OF_CONFIGURATION.items():
                if isinstance(number := getattr(config, name, None), int):
                    self._hints.add(InputHint.of(kind, np.array([[number]]))._replace(size=0))
        forward = getattr(type(module), "forward", None)  # one of torch.jit has none
        is_table, names = forward is Embedding.forward, _arguments_of(forward)
        if (is_table or names is not None) and can_read_values():
            with torch._C.DisableTorchFunction():  # whole numbers, of which autograd records nothing
                if is_table and args:
                    if module not in self._tables:
                        self._tables[module] = _table_of(module, running)
                    self._read(args[0], self._tables[module])
                values = {name: args[place] for place, name in names or () if place < len(args)}
                values.update(frame.f_locals.get("kwargs", {}))  # of torch's caller, which hands hooks none
                self._read_arguments(values, running)
        return begun

    def _read_arguments(self, arguments: Mapping[str, Any], running: Sequence[torch.nn.Module]) -> None:
        """Read positions, and the padding that the outermost module is given: an inner one may be made of it."""
        is_inside = any(each is self._masked() for each in running[:-1])
        for name, value in arguments.items():
            axes = value.dim() if isinstance(value, torch.Tensor) else 0
            if _POSITIONS.fullmatch(name):
                self._read(value, _positions)
            elif not is_inside and ((axes == 2 and _MASK.fullmatch(name)) or (axes == 1 and _LENGTHS.fullmatch(name))):
                self._masked = ref(running[-1])
                if axes == 1:
                    self._read(value, _lengths)
                elif _is_plain(value) and bool(((value == 0) | (value == 1)).all()):
                    for hint in _mask(name, to_numpy(value).astype(np.int64)):
                        self._hints.add(hint)

    def leave(self, begun: tuple[int, int], ran: tuple[Any, ...] | None) -> None:
        """Read the output of a module that ends."""
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
                        self._hints.add_to_last_call(InputHint.of("encoded", tokens, times > 1))
            if (real := self._hints.encoded_tokens()) is not None:
                outputs = tuple(output.values()) if isinstance(output, Mapping) else output
                for one in outputs if isinstance(outputs, tuple) else (outputs,):
                    if _is_of_vectors(one) and sorted(one.shape[:2]) == sorted(real.shape):
                        self._encoded.append((ref(one), real.astype(np.int64)))
                        break

    def _read(self, value: Any, read: _ReadHints) -> None:
        """Hand over the hints of whole numbers, or of one, which is a first position of any number of them."""
        if type(value) is int:
            for hint in read(np.array([[value]])):
                self._hints.add(hint._replace(size=0))
        elif _is_plain(value) and value.dim() in (1, 2) and value.dtype in (torch.int32, torch.int64):
            version = None if value.is_inference() else value._version
            # Each layer is called with the same positions.
            known = [one[3] for one in self._recent if one[0]() is value and one[1] == version and one[2] == read]
            if not known or version is None:
                known = [tuple(read(np.atleast_2d(to_numpy(value)).astype(np.int64)))]
                self._recent.append((ref(value), version, read, known[0]))
            for hint in known[0]:
                self._hints.add(hint)


@cache
def _arguments_of(forward: Callable[..., Any] | None) -> tuple[tuple[int, str], ...] | None:
    """Return which arguments of a forward are called after positions or padding; None where none is or can be.

    Torch's own modules are given what the program made of padding.
    """
    names: list[inspect.Parameter] = []
    if (getattr(forward, "__module__", None) or "torch.").startswith("torch."):
        return None
    with suppress(TypeError, ValueError):
        _, *names = [] if forward is None else inspect.signature(forward).parameters.values()
    patterns = _POSITIONS, _MASK, _LENGTHS
    found = tuple((i, one.name) for i, one in enumerate(names) if any(each.fullmatch(one.name) for each in patterns))
    return found if found or any(one.kind is one.VAR_KEYWORD for one in names) else None


def _table_of(embedding: Any, running: Sequence[torch.nn.Module]) -> _ReadHints:
    """Return what reads the numbers that choose vectors of an embedding."""
    names = (name.rpartition(".")[2] for name, module in running[0].named_modules() if module is embedding)
    if any("pos" in name or name == "wpe" for name in names):
        return partial(_positions, size=embedding.num_embeddings)
    padding, ends, source = embedding.padding_idx, [None], "embedding"
    for each in reversed(running):  # the model whose embedding it is
        config, words = getattr(each, "config", None), None
        with suppress(Exception):  # the model's own method, which some have and do not implement
            words = each.get_input_embeddings()  # type: ignore[operator]
        pad = getattr(config, "pad_token_id", None)
        if isinstance(pad, int) and words is embedding:
            padding, source = pad, "configuration" if padding is None else "both"
            ends = [getattr(config, name, None) for name in ("bos_token_id", "eos_token_id")]
            break
    return partial(_tokens, padding, padding not in ends, source)


def _tokens(
    padding: int | None, is_padding_alone: bool, source: str, ids: Int[np.ndarray, "B T"]
) -> Iterator[InputHint]:
    """Yield which positions are words, where some at the ends of rows are none; within a row nothing is padding."""
    if padding is None or ids.shape[1] < 2:
        return
    real = ids != padding
    from_left, from_right = (np.maximum.accumulate(each, axis=1) for each in (real, real[:, ::-1]))
    inside = from_left & from_right[:, ::-1]
    is_at_one_end = bool(from_left.all() or from_right.all()) and np.array_equal(real, inside)
    is_sure = is_padding_alone and is_at_one_end and int((~real).sum(axis=1).max()) > 1
    if inside.all():
        yield InputHint.of("unpadded", inside.astype(np.int64))
    else:
        yield InputHint.of("tokens", inside.astype(np.int64), is_sure, source)


def _mask(name: str, values: Int[np.ndarray, "B T"]) -> Iterator[InputHint]:
    """Yield which positions are words by a mask, if its rows have words, and these are contiguous.

    True is padding where the mask is called after it, as in torch; unless a row without words contradicts.
    """
    for is_token in (values != 0, values == 0)[:: -1 if "pad" in name else 1]:
        edges = np.diff(is_token.astype(np.int8), axis=1, prepend=0, append=0)
        if ((edges == 1).sum(axis=1) == 1).all() and (is_token[:, 0] | is_token[:, -1]).all():
            yield _of_argument(name, is_token)
            return


def _lengths(values: Int[np.ndarray, "1 B"]) -> Iterator[InputHint]:
    """Yield which positions are words in rows of these lengths, with the padding at either end."""
    lengths, longest = values[0][:, None], int(values.max())
    if 0 < longest <= _LONGEST and values.min() > 0:
        at = np.arange(longest)
        yield _of_argument("lengths", at < lengths)
        if (lengths != longest).any():
            yield _of_argument("lengths", at >= longest - lengths)


def _of_argument(name: str, is_token: Bool[np.ndarray, "B T"]) -> InputHint:
    return InputHint.of("mask", is_token.astype(np.int64), False, name)


def _positions(values: Int[np.ndarray, "B T"], size: int = 0) -> Iterator[InputHint]:
    yield InputHint.of("positions", values, values.shape[1] + _SPARE < size)
    if (hint := documents(values)) is not None:
        yield hint


def documents(positions: Int[np.ndarray, "B T"]) -> InputHint | None:
    """Return the documents that positions count; None where no row has two of two positions or more."""
    is_start = positions == 0
    continues = positions[:, 1:] == positions[:, :-1] + 1
    if not is_start[:, 0].all() or not (continues | is_start[:, 1:]).all():
        return None
    values = is_start.cumsum(axis=1) - 1
    lengths = [np.bincount(own, minlength=values.shape[1]) for own in values]
    if max(int((each > 1).sum()) for each in lengths) < 2:
        return None
    alone = np.stack([each[own] < 2 for each, own in zip(lengths, values, strict=True)])
    return InputHint.of("documents", np.where(alone, -1, values))  # a position by itself is padding


def _is_plain(value: Any) -> bool:
    return type(value).__name__ == "Tensor" and not (value.is_meta or value.is_nested) and value.numel() > 0


def _is_of_vectors(value: Any) -> bool:
    return _is_plain(value) and value.dim() == 3 and value.is_floating_point()
