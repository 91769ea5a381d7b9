"""Writes a trace to a safetensors file, as `store` reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attncli.files import atomic_write
from attncli.masks.expressions import RuleMask, files_of
from attncli.trace.layer import ARRAYS, LayerTrace
from attncli.trace.tokens import Tokens

PIXELS = "pictures.{}"  # the tensor of a picture
_NUMBERS = ("layer", "kind", "scale", "softcap")


def write_layers(
    path: str | Path,
    layers: Sequence[LayerTrace],
    header: Mapping[str, Any],
    pixels: Sequence[np.ndarray[Any, Any]] = (),
) -> None:
    """Write the layers of a trace, with the rest of it as a header.

    Raises:
        InputError: the file cannot be written.
    """
    from safetensors.numpy import save

    tensors = {PIXELS.format(number): np.ascontiguousarray(picture) for number, picture in enumerate(pixels)}
    entries = []
    for layer in layers:
        prefix = f"layers.{layer.layer}.{layer.kind}."
        arrays = {name: getattr(layer, name) for name in ARRAYS}
        entry: dict[str, Any] = {name: getattr(layer, name) for name in _NUMBERS}
        entry["fill"] = str(layer.fill)
        entry["proof"] = layer.proof and {name: str(value) for name, value in layer.proof._asdict().items()}
        if isinstance(layer.mask, RuleMask) and not files_of(layer.mask.expression):
            entry["mask"] = {"expression": str(layer.mask.expression), "past": layer.mask.past}
        else:
            arrays["mask"] = layer.mask.rows(list(range(layer.num_heads)), np.arange(layer.num_queries))
        tensors |= {prefix + tensor_name(name): np.ascontiguousarray(a) for name, a in arrays.items() if a is not None}
        entries.append(entry)
    document = {name: _tokens(value) if isinstance(value, Tokens) else value for name, value in header.items()}
    with atomic_write(path) as aside:
        # Through bytes: the library's own errors about a file leave out the system's reason.
        aside.write_bytes(save(tensors, metadata={"attncli": json.dumps(document | {"layers": entries})}))


def tensor_name(array: str) -> str:
    """Return the name of an array of `LayerTrace` in a file."""
    return array.removeprefix("recorded_")


def _tokens(tokens: Tokens) -> list[dict[str, Any]]:
    return [{**token.as_dict(), "id": token.id, "word": token.word} for token in tokens]
