"""Inputs that a graph declares: ids, mask, segments, positions, and a cache that is still empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attncli.errors import InputError, NotExposedError
from attncli.text import visible

Inputs = Mapping[str, tuple[np.dtype[Any], list[int]]]  # types and sizes by name, as `Graph.inputs`
IDS, HIDDEN, PIXELS = "input_ids", "encoder_hidden_states", "pixel_values"
_OF_TOKENS = ("attention_mask", "encoder_attention_mask", "token_type_ids", "position_ids", "cache_position")
_CHOICES = {"use_cache_branch": [False], "num_logits_to_keep": 1}
_PAST = ("past.", "past_")  # begins the names of what a cache holds


def check_inputs(inputs: Inputs, shown: str) -> None:
    """Raise NotExposedError for a graph that reads more than attn has."""
    for name in inputs:
        if name not in (IDS, HIDDEN, PIXELS, *_OF_TOKENS, *_CHOICES) and not name.startswith(_PAST):
            has = "attn has ids, masks, positions and pixels"
            raise NotExposedError(f"the graph of {shown} reads {visible(name)}; {has}; export it with these inputs")


def feeds_of(inputs: Inputs, arrays: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Return the inputs of a graph: those of a sentence by their names, and what follows from them.

    Raises:
        InputError: the graph was exported for another number of tokens.
    """
    feeds = {}
    for name, (dtype, sizes) in inputs.items():
        array = np.asarray(arrays[name] if name in arrays else _made(name, sizes, arrays))
        fixed = [size or given for size, given in zip(sizes, array.shape, strict=False)]
        if list(array.shape) != fixed:
            expected, came = ("×".join(map(str, shape)) for shape in (fixed, array.shape))
            raise InputError(f"the graph reads {visible(name)} of {expected}, not {came}; export it with dynamic axes")
        feeds[name] = array.astype(dtype)
    return feeds


def _made(name: str, sizes: list[int], arrays: Mapping[str, Any]) -> Any:
    """Return an input that follows from the number of tokens, or that is empty."""
    if name in _CHOICES:
        return _CHOICES[name]
    if name not in _OF_TOKENS:
        return np.zeros([*(sizes[:1] if sizes[:1] != [0] else [1]), *sizes[1:]])
    tokens = np.shape(arrays[HIDDEN if name.startswith("encoder_") else IDS])[1]
    if name.endswith("_mask"):
        return [[1] * tokens]
    if name == "token_type_ids":
        return [[0] * tokens]
    return [*range(tokens)] if name == "cache_position" else [[*range(tokens)]]
