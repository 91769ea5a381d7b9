"""Inputs that an exported graph declares: token ids, and what follows from their number, padding and a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from attncli.checkpoints.onnx_files import CACHED
from attncli.errors import NotExposedError
from attncli.text import visible

IDS, MASK, HIDDEN, PIXELS = "input_ids", "attention_mask", "encoder_hidden_states", "pixel_values"
_POSITIONS = "position_ids"
_PAST = ("past.", "past_")  # beginnings of the names of a cache
# Inputs that follow from the number of tokens, and from reading a text at once.
_OF_TOKENS: dict[str, Callable[[int], Any]] = {
    **dict.fromkeys((MASK, "encoder_attention_mask"), lambda tokens: [[1] * tokens]),
    "token_type_ids": lambda tokens: [[0] * tokens],
    _POSITIONS: lambda tokens: [[*range(tokens)]],
    "cache_position": lambda tokens: [*range(tokens)],
    CACHED: lambda _: [False],
    "num_logits_to_keep": lambda _: 1,
}
Declared = Mapping[str, tuple[np.dtype[Any], list[int]]]  # type and sizes of each input, 0 where any size is read


def graph_inputs(declared: Declared, arrays: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Return all inputs that a graph declares, of those of a sentence; NotExposedError for an unknown one."""
    inputs = dict[str, np.ndarray[Any, Any]]()
    for name, (dtype, sizes) in declared.items():
        inputs[name] = array = np.asarray(arrays[name] if name in arrays else _implied(name, sizes, arrays), dtype)
        if any(size not in (0, count) for size, count in zip(sizes, array.shape, strict=False)):
            fixed, actual = (" × ".join(str(size or "any") for size in shape) for shape in (sizes, array.shape))
            reads = f"the graph reads {visible(name)} of {fixed}, and this input has {actual}"
            raise NotExposedError(f"{reads}; give one of that size, or export it with dynamic axes")
    return inputs


def _implied(name: str, sizes: Sequence[int], arrays: Mapping[str, Any]) -> Any:
    """Return an input that no sentence has: of its number of tokens, or of an empty cache."""
    if name in _OF_TOKENS:
        return _OF_TOKENS[name](np.shape(arrays[HIDDEN if name.startswith("encoder_") else IDS])[1])
    if not name.startswith(_PAST):
        raise NotExposedError(f"the graph reads {visible(name)}, which attn does not have")
    ahead = 2 if len(sizes) == 5 else 1  # axes before the heads: keys and values may be in one input, `[2, B, H, T, D]`
    if 0 not in sizes[ahead:]:
        size = "a fixed size" if sizes else "no stated size"
        raise NotExposedError(f"the graph reads a {visible(name)} of {size}; export it with dynamic axes")
    return np.zeros((*(size or 1 for size in sizes[:ahead]), *sizes[ahead:]))


def padded_inputs(ids: Sequence[int], padding_id: int, left: int, right: int) -> dict[str, Any]:
    """Return the inputs of a text with tokens of padding, whose positions do not count them."""
    words = (0, [1] * len(ids))
    values = {IDS: (padding_id, ids), MASK: words, f"encoder_{MASK}": words, _POSITIONS: (0, range(len(ids)))}
    return {name: [[pad] * left + [*inner] + [pad] * right] for name, (pad, inner) in values.items()}


def step_inputs(ids: Sequence[int], start: int, end: int) -> dict[str, Any]:
    """Return the inputs of a part of a text, behind the tokens of a cache."""
    positions = range(start, end)
    whole = {IDS: [ids[start:end]], MASK: [[1] * end], CACHED: [start > 0]}
    return {**whole, _POSITIONS: [positions], "cache_position": positions}


def cache_outputs(inputs: Iterable[str], outputs: Sequence[str]) -> dict[str, str]:
    """Return the inputs of keys and values of the tokens before, with the outputs that hold those for the next."""
    past = [name for name in inputs if name.startswith(_PAST)]
    named = {name: f"present{name.removeprefix('past_key_values').removeprefix('past')}" for name in past}
    in_order = dict(zip(past, outputs[-len(past) :], strict=False))
    return named if {*named.values()} <= {*outputs} else in_order
