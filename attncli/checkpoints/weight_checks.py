"""How the weights of a checkpoint are stored; both engines refuse weights that they would misread.

A quantization that nobody undoes, an adapter that nobody applies, a tensor that nobody reads: the numbers look like any
others, but they are not the model's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from attncli.checkpoints.checkpoint_folder import WEIGHTS, WEIGHTS_INDEX
from attncli.checkpoints.snapshot import there_is
from attncli.errors import LoadError
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.checkpoints.checkpoint_folder import CheckpointFolder
    from attncli.checkpoints.tensors import Store

# Types that are the numbers themselves; F8_E4M3 and I8 are so many steps of a scale.
_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_FIELDS = ("quantization_config", "quantization")  # of a configuration; the second is that of MLX
# What a name says of a tensor by one of its words: weight_scale_inv, qzeros, weight.absmax, lora_A.
_WORD = r"(?:^|[._:])(?:{})(?=[._:]|$)"
_OF_QUANTIZATION = re.compile(
    _WORD.format(
        r"q?scales?|q?zeros?|zero_points?|qweight|qdata|quant\w*|absmax|amax|packed|codebooks?|g_idx|scb|weight_quantizer"
    ),
    re.IGNORECASE,
)
# Of what runs through the weights, or is kept of it: who computes in floats needs none of it.
_OF_ACTIVATIONS = re.compile(
    _WORD.format(r"(?:(?:in|out)put|act(?:ivation)?|prob|[qkv]|kv|[kv]_cache)_(?:\w+_)?(?:scales?|zero_points?|amax)")
    + r"|(?:in|out)put_quantizer"
)
_OF_ADAPTER = re.compile(_WORD.format(r"lora_\w+|ia3_l|hada_\w+|lokr_\w+"))
# Masks and angles that older versions of transformers saved, and what tools have counted: no parameters.
_BUFFERS = re.compile(
    r"att(entio)?n\.(masked_)?bias$|rotary|inv_freq|(position_ids|causal_mask|_cached|_extra_state)$"
    r"|(num_batches_tracked|total_ops|total_params)$"
)

_ADVICE = "give the original checkpoint, or save it dequantized with transformers"


def check_has_weights(name: str, files: CheckpointFolder) -> None:
    """Raise LoadError for a folder without weights that can be read, with the files that it has."""
    if WEIGHTS not in files and WEIGHTS_INDEX not in files:
        raise LoadError(
            f"{visible(name)} has a config.json but no weights{there_is(files)}: expected {WEIGHTS}, "
            f"or {WEIGHTS_INDEX} and its files"
        )


def quantization_of(config: Mapping[str, Any]) -> Any:
    """Return what a config.json says of how the weights are quantized; None if they are not."""
    text = config.get("text_config")
    places = [config, text] if isinstance(text, Mapping) else [config]
    return next((place[field] for place in places for field in _FIELDS if place.get(field) is not None), None)


def without_quantization(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a config.json says of the model, not of how its weights are stored."""
    return {field: value for field, value in config.items() if field not in _FIELDS}


def unknown_quantization(name: str, method: Any) -> LoadError:
    """Return the error for a checkpoint that is quantized by a method that is not undone; None: it does not say."""
    how = "its config.json does not say how" if method is None else f"attn does not read '{visible(str(method))}'"
    return LoadError(f"the weights of {visible(name)} are quantized, and {how}; {_ADVICE}")


def check_types(name: str, store: Store, floating: Iterable[str], head: str) -> set[str]:
    """Return the types in which weights are stored; LoadError for codes (int8, float8) where the model has floats.

    A cast would hide them.

    Args:
        name: of the checkpoint.
        store: its tensors.
        floating: the tensors of the model that are floats, and that run.
        head: see `check_unread`.
    """
    bare = {tensor.removeprefix(head) for tensor in floating}
    types = {each: store.stored(each).type for each in store.names if each.removeprefix(head) in bare}
    if codes := sorted(each for each, kind in types.items() if kind not in _FLOATS):
        raise LoadError(
            f"the weights of {visible(name)} are quantized in an unknown way ({_some(codes)}: stored as "
            f"{types[codes[0]]}, and its scale is missing); {_ADVICE}"
        )
    return {_FLOATS[kind] for kind in types.values()}


def check_unread(
    name: str, unread: Collection[str], modules: Iterable[str], head: str, is_undone: bool
) -> tuple[str, ...]:
    """Judge the tensors of a checkpoint that its model does not read; return notes for the user.

    Tensors of heads, poolers, towers and layers that were left out are usual. A tensor beside those of a module that
    runs is not.

    Args:
        name: of the checkpoint.
        unread: the tensors.
        modules: the parts of the model that run, by the names that their tensors begin with.
        head: what names begin with, or not, by how the checkpoint was saved: `model.`
        is_undone: whether the weights are quantized, and their store gives the numbers that they stand for.

    Raises:
        LoadError: some belong to an adapter, or without them others are not the numbers that they stand for.
    """
    bare = {module.removeprefix(head) for module in modules}
    owners = bare | {head + module for module in bare}
    # The prefixes under which there are weights, not only scales or adapters: other models, such as towers. Under
    # another prefix, scales alone are those of the model's own layers.
    parts = [each.split(".") for each in unread if not _OF_QUANTIZATION.search(each) and not _OF_ADAPTER.search(each)]
    whole = {".".join(each[:end]) for each in parts for end in range(1, len(each))}
    unused: list[str] = []
    others: list[str] = []
    for tensor in sorted(unread):
        owner, rest = _place(tensor, owners, whole)
        if _BUFFERS.search(tensor) or not owner:
            continue
        is_scale = _OF_QUANTIZATION.search(rest) and not (is_undone and _OF_ACTIVATIONS.search(rest))
        if is_scale or _OF_ADAPTER.search(rest):
            unused.append(tensor)
        elif _in_layer(owner):
            others.append(tensor)
    if unused:
        raise LoadError(
            f"the weights of {visible(name)} are quantized in an unknown way, or hold an adapter ({_some(unused)}); "
            f"{_ADVICE}"
        )
    if not others:
        return ()
    return (
        f"the weights of {visible(name)} have tensors in layers that run which its model does not read "
        f"({_some(others)}); check that the files belong to this config.json",
    )


def _place(tensor: str, modules: Collection[str], whole: Collection[str]) -> tuple[str, str]:
    """Return the part of a model that a tensor belongs to, and the rest of its name; no part if none of it runs."""
    parts = tensor.split(".")
    first_index = next((place for place, part in enumerate(parts) if part.isdigit()), 0)
    for start in range(first_index + 1):
        if ".".join(parts[:start]) in whole:
            continue
        for end in range(len(parts) - 1, start, -1):
            owner, rest = ".".join(parts[start:end]), parts[end:]
            if owner in modules and (not start or _in_layer(owner)):
                is_layer_left_out = rest[0].isdigit() and not _in_layer(owner)
                return "" if is_layer_left_out else owner, ".".join(rest)
    return "", tensor


def _in_layer(owner: str) -> bool:
    return any(part.isdigit() for part in owner.split("."))


def _some(tensors: list[str]) -> str:
    more = len(tensors) - 1
    return visible(tensors[0]) + (f" and {more:,} more" if more else "")
