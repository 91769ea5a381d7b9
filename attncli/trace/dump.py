"""Reads dumps of tensors from other programs: q and k, perhaps v, mask and bias, perhaps tokens and a scale."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np

from attncli.errors import InputError
from attncli.files import Tensors
from attncli.masks.conventions import read_convention
from attncli.masks.expressions import ArrayMask, Atom, Mask, RuleMask, smallest
from attncli.text import visible
from attncli.trace.layer import LayerTrace
from attncli.trace.layout import ImageGrid, parse_grids
from attncli.trace.selection import Indices
from attncli.trace.tokens import Token, Tokens
from attncli.trace.trace import Provenance, Trace

DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}


def checked_cells(name: str, array: np.ndarray[Any, Any], cells: tuple[int, int, int]) -> np.ndarray[Any, Any]:
    """Return booleans over all cells, `[1 or H, Q, K]`."""
    heads, queries, keys = cells
    if array.dtype != bool or array.shape not in ((1, queries, keys), (heads, queries, keys)):
        raise InputError(
            f"{name} is {array.dtype} of shape {list(array.shape)}; expected booleans [1 or {heads}, {queries}, {keys}]"
        )
    return array


def read_dump(tensors: Tensors, layers: Indices, heads: Indices) -> Trace:
    """Return the trace of a dump; see `attncli.trace.store.load`."""
    names, metadata = tensors.types.keys(), tensors.metadata
    if not {"q", "k"} <= names:
        held = ", ".join(sorted(map(visible, names))[:8]) or "no tensors"
        raise InputError(f"it holds {held}; expected a saved trace, or tensors q and k")
    arrays: dict[str, Any] = {
        name: _heads_first(name, tensors.read(name)) for name in ("q", "k", "v", "bias") if name in names
    }
    notes = [
        f"{name} holds NaN or infinite numbers; what follows from them carries their mark"
        for name, array in arrays.items()
        if not np.isfinite(array).all()
    ]
    if unread := sorted(map(visible, names - {"q", "k", "v", "mask", "bias"})):
        notes.append(f"of its tensors {', '.join(unread[:5])} are not read; a dump is q, k, v, mask and bias")
    # Without values there are no outputs; a width of zero says so in every shape.
    arrays.setdefault("v", np.zeros((*arrays["k"].shape[:2], 0), np.float32))
    num_heads, num_queries, width = arrays["q"].shape
    num_keys = arrays["k"].shape[1]
    layers.resolve(1, "a dump of q and k")
    cells = (num_heads, num_queries, num_keys)
    mask: Mask = RuleMask(Atom("full"), num_queries, num_keys, num_heads)
    if "mask" in names:
        values = tensors.read("mask")
        allowed = read_convention(values.reshape((-1, *values.shape[-2:])), "the mask of the dump", "sdpa").allowed
        mask = smallest(checked_cells("mask", allowed, cells), num_heads)
    if "bias" in arrays and (forbidden := np.isneginf(arrays["bias"])).any():  # a mask by another name
        allowed = mask.rows(list(range(num_heads)), np.arange(num_queries)) & ~forbidden
        mask = ArrayMask(checked_cells("mask", allowed, cells))
        arrays["bias"] = np.where(forbidden, 0, arrays["bias"])
    try:
        scale = float(metadata.get("scale", width**-0.5))
    except ValueError:
        raise InputError(f"its metadata has scale '{visible(metadata['scale'])}'; expected a number") from None
    kind, chosen = "self" if num_queries == num_keys else "cross", heads.resolve(num_heads, "the dump")
    layer = LayerTrace(0, kind, **arrays, scale=scale, mask=mask, heads=chosen)
    tokens = _tokens(metadata.get("tokens"), num_keys)
    # A cache of keys is longer than its queries, which are its last positions.
    queries = tokens[num_keys - num_queries :] if num_queries <= num_keys else _tokens(None, num_queries)
    query_tokens = Tokens(replace(token, index=index) for index, token in enumerate(queries))
    grids: tuple[ImageGrid, ...] = ()
    if "grid" in metadata:
        prefix = metadata.get("prefix", "0")
        if not (prefix.isascii() and prefix.isdecimal() and len(prefix) < 9):
            raise InputError(f"its metadata has prefix '{visible(prefix)}'; expected a number of positions")
        grids = parse_grids(metadata["grid"], int(prefix), 1, num_queries, num_keys, "grid")
    source = Provenance("file", dtype=DTYPES.get(tensors.types["q"], tensors.types["q"]))
    return Trace(source, query_tokens, tokens, (layer,), notes=tuple(notes), grids=grids)


def _tokens(text: str | None, count: int) -> Tokens:
    try:
        labels = [str(index) for index in range(count)] if text is None else json.loads(text)
    except ValueError:
        labels = None
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels) or len(labels) != count:
        raise InputError(f"its metadata 'tokens' is not a JSON list of {count} strings, one for each position of k")
    # The same text is the same token; its id is the place where it first stands.
    first = {label: count - 1 - index for index, label in enumerate(reversed(labels))}
    return Tokens(Token(index, first[label], label, None, None) for index, label in enumerate(labels))


def _heads_first(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.ndim == 4 and len(array) == 1:
        array = array[0]
    if array.ndim == 2:
        array = array[None]
    if array.ndim != 3 or array.dtype.kind != "f":
        raise InputError(
            f"{name} is {array.dtype} of shape {list(array.shape)}; expected floats [T, D], [H, T, D] or [1, H, T, D]"
        )
    return array if array.dtype == np.float64 else array.astype(np.float32)
