"""Inputs that a graph declares: ids, mask, segments, positions, and a cache that is still empty."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import ValueInfoProto, helper

from attncli.engines.onnx.graph import Graph
from attncli.errors import InputError, NotExposedError
from attncli.text import visible

Feeds = dict[str, np.ndarray[Any, Any]]
IDS = "input_ids"
HIDDEN = "encoder_hidden_states"
PIXELS = "pixel_values"
_PAST = ("past_key_values", "past.", "past_key", "past_value", "past_")

# Rows of each input for a number of tokens.
_MADE: dict[str, Callable[[int], Any]] = {
    "attention_mask": lambda tokens: [1] * tokens,
    "encoder_attention_mask": lambda tokens: [1] * tokens,
    "token_type_ids": lambda tokens: [0] * tokens,
    "position_ids": lambda tokens: [*range(tokens)],
}


def check_inputs(graph: Graph, shown: str) -> None:
    """Raise NotExposedError for a graph that reads more than attn has."""
    known = (IDS, *_MADE, HIDDEN, PIXELS, "cache_position", "use_cache_branch", "num_logits_to_keep")
    for name in graph.inputs:
        if name not in known and not name.startswith(_PAST):
            reads = f"the graph of {shown} reads {visible(name)}"
            raise NotExposedError(f"{reads}; attn has ids, masks, positions and pixels; export it with these inputs")


def feeds_of(graph: Graph, arrays: Mapping[str, Any]) -> Feeds:
    """Return the inputs of a graph: those of a sentence by their names, and what follows from them.

    Raises:
        InputError: the graph was exported for another number of tokens.
    """
    feeds: Feeds = {}
    for name, value in graph.inputs.items():
        array = np.asarray(arrays[name] if name in arrays else _made(name, value, arrays))
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        fixed = [size or given for size, given in zip(shape, array.shape, strict=False)]
        if list(array.shape) != fixed:
            expected, came = ("×".join(map(str, sizes)) for sizes in (fixed, array.shape))
            raise InputError(f"the graph reads {visible(name)} of {expected}, not {came}; export it with dynamic axes")
        feeds[name] = array.astype(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
    return feeds


def _made(name: str, value: ValueInfoProto, arrays: Mapping[str, Any]) -> Any:
    """Return an input that follows from the number of tokens, or that is empty."""
    side = arrays[HIDDEN] if name.startswith("encoder_") else arrays[IDS]
    tokens = np.shape(side)[1]
    if name in _MADE:
        return [_MADE[name](tokens)]
    if name == "cache_position":
        return [*range(tokens)]
    if name == "num_logits_to_keep":
        return 1
    if name == "use_cache_branch":
        return [False]
    first, *sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    return np.zeros((first or 1, *sizes))
