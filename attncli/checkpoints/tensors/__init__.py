"""Stores of a checkpoint's tensors: a module for each place and form of weights, all with one interface.

A tensor is read by its name, whether it is mapped from a file, fetched or computed. Both engines refuse weights that
they would misread: with a quantization that is not undone, or an adapter that is not applied, the numbers are not the
model's.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attncli.errors import LoadError
from attncli.files import FLOATS
from attncli.text import visible

Array = np.ndarray[Any, Any]


class Stored(NamedTuple):
    """Type and shape of a tensor, before it is read."""

    type: str  # of its numbers, in the spelling of safetensors
    shape: tuple[int, ...]  # as it is read


class Store(ABC):
    """The tensors of one checkpoint, by the names that they have in it."""

    form = ""  # how they are stored, for the headline; empty for plain numbers
    names: Collection[str]  # of all its tensors

    @abstractmethod
    def stored(self, name: str) -> Stored:
        """Return the type and the shape of a tensor."""

    def precision(self, name: str) -> str:
        """Return the type of number whose rounding a tensor has, such as bfloat16 or int4."""
        return FLOATS.get(self.stored(name).type, "int4")

    def release(self) -> None:  # noqa: B027  most hold nothing
        """Release the memory of tensors that were read; they can be read again."""

    def prepare(self, names: Collection[str]) -> None:  # noqa: B027  most have all of it here
        """Fetch tensors that are about to be read, if they have to come from somewhere; unknown names are ignored."""

    @abstractmethod
    def read(self, name: str) -> Array:
        """Return a tensor as it is stored: 16 bits that are no float are a bfloat16; see `attncli.files.to_float32`."""

    def rows(self, name: str, indices: Sequence[int]) -> Array:
        """Return some rows of a table as they are stored, where it can be without reading the others."""
        return self.read(name)[list(indices)]


class ComputedTensor(NamedTuple):
    """A tensor of the model that is made of stored ones."""

    shape: tuple[int, ...]
    parts: tuple[str, ...]  # the tensors of the checkpoint that are read for it
    read: Callable[[], Array]  # makes its numbers, in float32


class ComputedStore(Store):
    """The tensors of a store; those that are made of parts are computed when they are read."""

    def __init__(self, store: Store, computed: Mapping[str, ComputedTensor], form: str) -> None:
        self._store, self._computed, self.form = store, computed, form
        parts = {part for tensor in computed.values() for part in tensor.parts}
        self.names = dict.fromkeys([*(name for name in store.names if name not in parts), *computed]).keys()

    def stored(self, name: str) -> Stored:
        """See `Store.stored`."""
        return Stored("F32", self._computed[name].shape) if name in self._computed else self._store.stored(name)

    def precision(self, name: str) -> str:
        """See `Store.precision`; most forms have four bits."""
        return "int4" if name in self._computed else self._store.precision(name)

    def release(self) -> None:
        """See `Store.release`."""
        self._store.release()

    def prepare(self, names: Collection[str]) -> None:
        """See `Store.prepare`."""
        parts = (self._computed[name].parts if name in self._computed else (name,) for name in names)
        self._store.prepare([part for of_tensor in parts for part in of_tensor])

    def read(self, name: str) -> Array:
        """See `Store.read`."""
        return self._computed[name].read() if name in self._computed else self._store.read(name)

    def rows(self, name: str, indices: Sequence[int]) -> Array:
        """See `Store.rows`."""
        return super().rows(name, indices) if name in self._computed else self._store.rows(name, indices)


# --- checks of stored weights ------------------------------------------------------------------------------

_FIELDS = ("quantization_config", "quantization")  # of a configuration; the second is that of MLX
# Words in the names of tensors that show their kind: weight_scale_inv, qzeros, weight.absmax, lora_A.
_WORD = r"(?:^|[._:])(?:{})(?=[._:]|$)"
_OF_QUANTIZATION = re.compile(
    _WORD.format(
        r"q?scales?|q?zeros?|zero_points?|qweight|qdata|quant\w*|absmax|amax|packed|codebooks?|g_idx|scb|weight_quantizer"
    ),
    re.IGNORECASE,
)
# Scales of activations and statistics of weights: not needed for computing in floats.
_OF_ACTIVATIONS = re.compile(
    _WORD.format(r"(?:(?:in|out)put|act(?:ivation)?|prob|[qkv]|kv|[kv]_cache)_(?:\w+_)?(?:scales?|zero_points?|amax)")
    + r"|(?:in|out)put_quantizer"
)
_OF_ADAPTER = re.compile(_WORD.format(r"lora_\w+|ia3_l|hada_\w+|lokr_\w+"))
# Masks and angles that older versions of transformers saved, and counters of tools: no parameters.
_BUFFERS = re.compile(
    r"att(entio)?n\.(masked_)?bias$|rotary|inv_freq|(position_ids|causal_mask|_cached|_extra_state)$"
    r"|(num_batches_tracked|total_ops|total_params)$"
)
_UNKNOWN = "are quantized in an unknown way"
_ADVICE = "give the original checkpoint, or save it dequantized with transformers"


def quantization_of(config: Mapping[str, Any]) -> Any:
    """Return the quantization in a config.json, if there is one."""
    sections = [part for part in (config, config.get("text_config")) if isinstance(part, Mapping)]
    return next((section[field] for section in sections for field in _FIELDS if section.get(field) is not None), None)


def without_quantization(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json without its quantization."""
    return {field: value for field, value in config.items() if field not in _FIELDS}


def unknown_quantization(name: str, method: Any) -> LoadError:
    """Return the error for a checkpoint with an unsupported quantization method; None: it is not named."""
    how = "its config.json does not say how" if method is None else f"attn does not read '{visible(str(method))}'"
    return LoadError(f"the weights of {visible(name)} are quantized, and {how}; {_ADVICE}")


def wrong_shape(name: str, tensor: str, shape: Sequence[int], expected: Sequence[int]) -> LoadError:
    """Return the error for a tensor of another shape than its model expects."""
    return LoadError(
        f"the weights of {visible(name)} do not fit its config.json: {visible(tensor)} has shape {list(shape)}, "
        f"the model expects {list(expected)}; check that the files belong together"
    )


def check_types(name: str, store: Store, floating: Iterable[str], head: str) -> set[str]:
    """Return the types of stored weights; LoadError for codes (int8, float8) that a cast would hide."""
    bare = {tensor.removeprefix(head) for tensor in floating}
    types = {key: store.stored(key).type for key in store.names if key.removeprefix(head) in bare}
    if codes := sorted(key for key, kind in types.items() if kind not in FLOATS):  # F8_E4M3 and I8: steps of a scale
        missing = f"stored as {types[codes[0]]}, and its scale is missing"
        raise LoadError(f"the weights of {visible(name)} {_UNKNOWN} ({_first(codes)}: {missing}); {_ADVICE}")
    return {FLOATS[kind] for kind in types.values()}


def check_unread(
    name: str, unread: Collection[str], modules: Iterable[str], head: str, is_undone: bool
) -> tuple[str, ...]:
    """Return notes on the tensors of a checkpoint that its model does not read.

    Tensors of heads, poolers, towers and layers that were left out are usual. A tensor next to those of a module that
    runs is not. `modules` are the prefixes of the tensors of the parts that run; `head` is the prefix of all of them
    that depends on how the checkpoint was saved, such as `model.`; `is_undone` is whether the store dequantizes.

    Raises:
        LoadError: some belong to an adapter, or are needed to dequantize others.
    """
    bare = {module.removeprefix(head) for module in modules}
    owners = bare | {head + module for module in bare}
    # Prefixes with weights below them, not only scales or adapters, are other models, such as towers.
    parts = [key.split(".") for key in unread if not _OF_QUANTIZATION.search(key) and not _OF_ADAPTER.search(key)]
    towers = {".".join(key[:end]) for key in parts for end in range(1, len(key))}
    needed, unexpected = [], []
    for tensor in sorted(tensor for tensor in unread if not _BUFFERS.search(tensor)):
        owner, rest = _owner_of(tensor, owners, towers)
        is_scale = _OF_QUANTIZATION.search(rest) and not (is_undone and _OF_ACTIVATIONS.search(rest))
        if owner and (is_scale or _OF_ADAPTER.search(rest)):
            needed.append(tensor)
        elif owner and is_in_layer(owner):
            unexpected.append(tensor)
    whose = f"the weights of {visible(name)}"
    if needed:
        raise LoadError(f"{whose} {_UNKNOWN}, or hold an adapter ({_first(needed)}); {_ADVICE}")
    what = "have tensors in layers that run which its model does not read"
    check = "check that the files belong to this config.json"
    return (f"{whose} {what} ({_first(unexpected)}); {check}",) if unexpected else ()


def _owner_of(tensor: str, modules: Collection[str], towers: Collection[str]) -> tuple[str, str]:
    """Return the module that runs and has a tensor, perhaps under another prefix, and the rest of the name."""
    parts = tensor.split(".")
    first_index = next((index for index, part in enumerate(parts) if part.isdigit()), 0)
    for start in range(first_index + 1):
        if ".".join(parts[:start]) in towers:
            continue
        for end in range(len(parts) - 1, start, -1):
            owner, rest = ".".join(parts[start:end]), parts[end:]
            if owner in modules and (not start or is_in_layer(owner)):
                is_layer_left_out = rest[0].isdigit() and not is_in_layer(owner)
                return "" if is_layer_left_out else owner, ".".join(rest)
    return "", tensor


def is_in_layer(name: str) -> bool:
    """Return whether a module or a tensor is in a layer, by the index in its name."""
    return any(part.isdigit() for part in name.split("."))


def _first(tensors: list[str]) -> str:
    more = len(tensors) - 1
    return visible(tensors[0]) + (f" and {more:,} more" if more else "")
