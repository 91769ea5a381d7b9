"""Captures: the arrays of a run that any engine can write, layer by layer, as safetensors files.

Tensors are named `layers.N.q|k|v|input|output|mask|scale`, `tokens` and `positions`; the metadata holds `format`,
`rotated` and `dtype`. A step of a cache appends its number to the names of its new rows: `layers.N.k.S`. vLLM's files
of hidden states, which are `hidden_states` `[T, L, E]` and `token_ids`, are the inputs of layers 0, 1, ….
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np

from attncli.errors import InputError, UsageError
from attncli.files import FLOATS, Tensors, opened_tensors
from attncli.text import layers_named, visible
from attncli.trace.selection import Indices
from attncli.trace.tokens import Tokens

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

SCHEMA = "attncli.capture/1"
Rotated = Literal["before", "after"]  # whether queries and keys were written before or after their rotation

_OF_VLLM = {"hidden_states", "token_ids"}
_NAME = re.compile(r"(?:layers\.([0-9]{1,6})\.)?([a-z]+)(?:\.([0-9]{1,6}))?")
_IDS = ("tokens", "positions")  # of no layer
_ARRAYS: dict[str, tuple[str, tuple[int, ...], str]] = {  # kinds of numbers, numbers of axes, and both in words
    **dict.fromkeys("qkv", ("f", (3,), "floats [H, T, D]")),
    **dict.fromkeys(("input", "output"), ("f", (2,), "floats [T, E]")),
    **dict.fromkeys(_IDS, ("iu", (1,), "integers [T]")),
    "mask": ("b", (2, 3), "booleans [T, K] or [H, T, K]"),
    "scale": ("f", (0, 1), "a float"),
}
_NONE = -1  # no layer, and no step


@dataclass(frozen=True, eq=False)
class LayerCapture:
    """Arrays of one layer; None where the engine wrote none."""

    q: Float[np.ndarray, "H T D"] | None = None
    k: Float[np.ndarray, "Hkv K D"] | None = None
    v: Float[np.ndarray, "Hkv K Dv"] | None = None
    input: Float[np.ndarray, "T E"] | None = None  # the hidden states that enter the layer's block
    mask: Bool[np.ndarray, "T K"] | Bool[np.ndarray, "H T K"] | None = None  # True = attend
    scale: float | None = None  # what multiplies q·k
    output: Float[np.ndarray, "T E"] | None = None  # the hidden states that leave the attention


@dataclass(frozen=True, eq=False)
class Capture:
    """Captured layers of one sentence."""

    layers: Mapping[int, LayerCapture]  # by their index in the model
    token_ids: Int[np.ndarray, " T"] | None = None  # that the engine read
    positions: Int[np.ndarray, " T"] | None = None  # that it gave them
    rotated: Rotated = "after"  # of q and k; their norms come before both
    dtype: str = "float32"  # of the engine's computation, such as `bfloat16`
    unnamed: int = 0  # how many hidden states a file has that names no layers, and so must be those of all

    def __post_init__(self) -> None:
        """Raise InputError for numbers that are no token ids."""
        for id_ in [] if self.token_ids is None else self.token_ids.tolist():
            if not 0 <= id_ < 2**31:
                raise InputError(f"it has the token id {id_}; expected ids from 0 to 2,147,483,647")

    @property
    def queries(self) -> Rotated | None:
        """Whether queries are those before or after the rotation; None without queries."""
        return self.rotated if any(layer.q is not None for layer in self.layers.values()) else None

    @property
    def tokens(self) -> Tokens:
        """The tokens by their ids, or by their positions where the capture has no ids."""
        ids = range(next(iter(_lengths(self).values()))) if self.token_ids is None else self.token_ids.tolist()
        return Tokens.without_text(ids)


def load_capture(path: str | Path, layers: Indices | None = None) -> Capture:
    """Read layers of a capture, None is all; InputError if it is damaged, UsageError if it lacks a layer."""
    with opened_tensors(path) as tensors:
        if not is_capture(tensors):
            raise InputError(f"it is no capture; expected format {SCHEMA} in its metadata")
        return read_capture(tensors, layers or Indices("layer", None))


def is_capture(tensors: Tensors) -> bool:
    """Return whether a file is a capture, or vLLM's hidden states."""
    return tensors.metadata.get("format") == SCHEMA or tensors.types.keys() == _OF_VLLM


def read_capture(tensors: Tensors, layers: Indices) -> Capture:
    """Return the capture in a file; see `load_capture`."""
    if tensors.types.keys() == _OF_VLLM:
        return _capture_of_states(tensors, layers)
    names: dict[int, dict[str, dict[int, str]]] = {}  # by layer, array and step of a cache
    for name in tensors.types:
        match = _NAME.fullmatch(name)
        if match is None or match[2] not in _ARRAYS or (match[2] in _IDS) != (match[1] is None):
            expected = "layers.N.q, k, v, input, output, mask or scale, tokens and positions"
            raise InputError(f"a capture has no tensor {visible(name)}; expected {expected}")
        layer = _NONE if match[1] is None else int(match[1])
        names.setdefault(layer, {}).setdefault(match[2], {})[_NONE if match[3] is None else int(match[3])] = name
    ids = {array: _joined(tensors, array, steps) for array, steps in names.pop(_NONE, {}).items()}
    captured = {
        index: LayerCapture(**{array: _joined(tensors, array, steps) for array, steps in names[index].items()})
        for index in _chosen(layers, sorted(names))
    }
    widest = next((FLOATS[kind] for kind in FLOATS if kind in tensors.types.values()), "float32")
    rotated, dtype = tensors.metadata.get("rotated", "after"), tensors.metadata.get("dtype", widest)
    for value, among in ((rotated, get_args(Rotated)), (dtype, (*FLOATS.values(), "int8", "int4"))):
        if value not in among:
            raise InputError(f"its metadata has '{visible(value)}'; expected {', '.join(among[:-1])} or {among[-1]}")
    capture = Capture(captured, ids.get("tokens"), ids.get("positions"), cast(Rotated, rotated), dtype)
    lengths = _lengths(capture)
    if len(set(lengths.values())) != 1:
        sizes = ", ".join(f"{name} has {length}" for name, length in [*lengths.items()][:6]) or "there are none"
        raise InputError(f"expected as many positions in k, v, input, tokens and positions, and {sizes}")
    return capture


def _capture_of_states(tensors: Tensors, layers: Indices) -> Capture:
    states, ids = tensors.read("hidden_states"), tensors.read("token_ids")
    if states.ndim != 3 or states.dtype.kind != "f" or ids.dtype.kind not in "iu" or ids.shape != states.shape[:1]:
        shapes = f"hidden_states has shape {list(states.shape)} and token_ids {list(ids.shape)}"
        raise InputError(f"{shapes}; expected floats [T, L, E] and integers [T]")
    chosen = _chosen(layers, range(states.shape[1]))
    captured = {index: LayerCapture(input=states[:, index].astype(np.float32)) for index in chosen}
    return Capture(captured, ids, dtype=FLOATS[tensors.types["hidden_states"]], unnamed=states.shape[1])


def _chosen(layers: Indices, recorded: Sequence[int]) -> Sequence[int]:
    if not recorded:
        raise InputError("the capture holds no layer; expected layers.N.q, k and v, or layers.N.input")
    chosen = recorded if layers.parts is None else layers.resolve(recorded[-1] + 1, "the capture")
    if missing := [index for index in chosen if index not in recorded]:
        raise UsageError(f"the capture does not hold {layers_named(missing)}; it holds {layers_named(recorded)}")
    return chosen


def _joined(tensors: Tensors, array: str, steps: Mapping[int, str]) -> Any:
    """Return an array, the steps of a cache one after the other along T."""
    kinds, ranks, expected = _ARRAYS[array]
    order = sorted(steps)
    first = steps[order[0]]
    if order not in ([_NONE], [*range(len(order))]) or (len(order) > 1 and array in ("mask", "scale")):
        names = " and ".join([steps[step] for step in order][:2])
        raise InputError(f"it has {names}; expected steps 0, 1, 2, …, and one mask and scale")
    parts = [tensors.read(steps[step]) for step in order]
    for part in parts:
        if part.dtype.kind not in kinds or part.ndim not in ranks or not part.size or part.ndim != parts[0].ndim:
            raise InputError(f"{first} is {part.dtype} of shape {list(part.shape)}; expected {expected}")
    if array == "scale":
        return float(parts[0].item(0))
    joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=max(parts[0].ndim - 2, 0))
    return joined.astype(np.float32) if joined.dtype == np.float16 else joined


def _lengths(capture: Capture) -> dict[str, int]:
    """Return the number of positions of each array that has all of them."""
    arrays: dict[str, Any] = {"tokens": capture.token_ids, "positions": capture.positions}
    for index, layer in capture.layers.items():
        arrays |= {f"layers.{index}.{name}": getattr(layer, name) for name in ("k", "v", "input")}
    return {name: array.shape[max(array.ndim - 2, 0)] for name, array in arrays.items() if array is not None}
